"""Bodies of llama.cpp's own endpoints: generation, tokens, templates."""

from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mlxcel_cli.serve.api import Api
from mlxcel_cli.serve.bodies import FieldRules
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.generation_fields import ALIASES, GenerationRequest
from mlxcel_cli.serve.openai.schema import INERT
from mlxcel_cli.serve.progress import PromptProgress, TimingsBody

SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
"""The one order in which samplers run here, llama.cpp's default; their one-character keys below."""
SAMPLER_KEYS = "edskypmxt"

_ADVICE = {
    "samplers": "takes llama.cpp's default order only: leave it out, and switch samplers off by "
    "their own fields (top_k 0, top_p 1, min_p 0, ...)",
    "n_cmpl": "above 1 is not supported here: send the prompt several times as a list, or use "
    "/v1/completions with n",
    "id_slot": "cannot be chosen: every slot shares the prompt cache; use cache_prompt and "
    "prompt_cache_key",
    "grammar": "is not supported yet: check the text yourself, and bound it with stop",
    "json_schema": "is not supported yet: describe the form in the prompt, and bound it with stop",
    "lora": "is not supported: start the server on a model with the adapter merged in",
    "image_data": "is not supported: only text can be read here",
    "post_sampling_probs": "is not supported: n_probs shows probabilities before sampling",
    "n_keep": "is not supported, because the context never shifts: a full one ends the answer",
    "n_discard": "is not supported, because the context never shifts: a full one ends the answer",
    "n_cache_reuse": "is not supported: a prompt is reused from its beginning (cache_prompt)",
    "penalty_prompt": "is not supported: penalties see the newest repeat_last_n tokens",
    "system_prompt": "is not supported: put it into the prompt, or use /v1/chat/completions",
    "verbose": "is not supported: generation_settings shows what ran",
    "reasoning_format": "is not supported here: this endpoint does not split off reasoning; use "
    "/v1/chat/completions",
    "multimodal_data": "is not supported: only text can be read here",
}

LLAMACPP_FIELDS = FieldRules(
    aliases=MappingProxyType(
        {alias: name for alias, name in ALIASES.items() if name != "max_tokens"}
        | {
            "max_tokens": "n_predict",
            "max_completion_tokens": "n_predict",
            "n": "n_cmpl",
            "slot_id": "id_slot",
            "logprobs": "n_probs",
        }
    ),
    inert=INERT | {"chat_format", "add_bos", "t_max_prompt_ms"},
    unsupported=MappingProxyType(
        {
            "samplers": (list(SAMPLERS), SAMPLER_KEYS),
            "n_cmpl": (1,),
            "id_slot": (-1,),
            "grammar": ("",),
            "json_schema": (),
            "lora": ([],),
            "image_data": ([],),
            "multimodal_data": ([],),
            "post_sampling_probs": (False,),
            "n_keep": (0,),
            "n_discard": (0,),
            "n_cache_reuse": (0,),
            "penalty_prompt": (),
            "system_prompt": ("",),
            "verbose": (False,),
            "reasoning_format": ("none",),
        }
    ),
    advice=MappingProxyType(_ADVICE),
)
"""What ``/completion`` and ``/infill`` tolerate."""

TOKENS_FIELDS = FieldRules(MappingProxyType({}), frozenset({"model"}), MappingProxyType({}))
"""What ``/tokenize`` and ``/detokenize`` tolerate."""


class NativeOptions(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What ``/completion`` and ``/infill`` share."""

    n_predict: int | None = None
    """-1: until the model ends or the context is full; 0 and 1: one token."""
    n_probs: int = 0
    """Likely tokens to show at each place."""
    return_tokens: bool = False
    n_indent: int = 0
    """Least indentation of every line but the first; one that has less ends the answer; 0: off."""
    t_max_predict_ms: int = 0
    """Milliseconds from the first token after which an answer with a new line ends; 0: never."""
    response_fields: Any = None
    """Paths of the fields to return; a path's parts are separated by ``/``."""


class NativeRequest(NativeOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /completion``."""

    prompt: str | list[str | int | list[str | int]]
    """A text, token ids, a mixture of both, or several of these."""


class ExtraChunk(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of another file, before the text to be filled."""

    text: str
    filename: str = ""


class InfillRequest(NativeOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /infill``: what stands between a prefix and a suffix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraChunk] = msgspec.field(default_factory=list)
    prompt: str = ""
    """How what is filled in begins."""


class NativeProb(msgspec.Struct, frozen=True):
    """One likely token."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class NativeProbs(msgspec.Struct, frozen=True):
    """A token of the answer with the likely ones at its place."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[NativeProb]


class NativeFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of a stream, before the last."""

    index: int | UnsetType = UNSET
    """Which of several prompts it answers."""
    content: str
    tokens: list[int] | UnsetType = UNSET
    stop: Literal[False] = False
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[NativeProbs] | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    timings: TimingsBody | UnsetType = UNSET


class NativeCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The response of ``/completion``, and the last frame of its stream."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    """Whether the context cut the answer off."""
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    """Tokens in the slot; not how many of them the prompt cache had."""
    timings: TimingsBody
    completion_probabilities: list[NativeProbs] | UnsetType = UNSET


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``POST /tokenize``."""

    content: str | list[str | int] = ""
    add_special: bool = False
    """Whether to begin as this model's texts begin."""
    parse_special: bool = True
    """Whether names of special tokens are those tokens."""
    with_pieces: bool = False


class TokenPiece(msgspec.Struct, frozen=True):
    """A token and what it stands for: a text, or bytes that are no text of their own."""

    id: int
    piece: str | list[int]


class TokenizeBody(msgspec.Struct, frozen=True):
    """Tokens, or tokens with their pieces."""

    tokens: list[int | TokenPiece]


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``POST /detokenize``."""

    tokens: list[int] = []


class DetokenizeBody(msgspec.Struct, frozen=True):
    """The text of tokens, special ones by their names."""

    content: str


class TemplateBody(msgspec.Struct, frozen=True):
    """A conversation as the model reads it."""

    prompt: str


class NativeErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    code: int
    message: str
    type: str


class NativeErrorBody(msgspec.Struct, frozen=True):
    """The body of an error on llama.cpp's endpoints."""

    error: NativeErrorDetail


def _error_body(error: ApiError, _: str) -> NativeErrorBody:
    """llama.cpp has a numeric code, and no field for the parameter."""
    return NativeErrorBody(NativeErrorDetail(int(error.status), error.message, error.kind))


LLAMACPP = Api(
    error_type=NativeErrorBody,
    error_body=_error_body,
    errors=MappingProxyType({
        403: "This feature is disabled.",
        501: "The model or the server's options do not support it.",
    }),
)  # fmt: skip
