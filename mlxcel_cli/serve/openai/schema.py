"""Bodies of OpenAI's API, with vLLM's and llama.cpp's additions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mlxcel_cli.serve.api import Api
from mlxcel_cli.serve.bodies import FieldRules
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.generation_fields import ALIASES, GenerationRequest
from mlxcel_cli.serve.progress import PromptProgress, TimingsBody

INERT = frozenset({
    "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
    "prompt_cache_retention",
})  # fmt: skip
"""Fields that OpenAI's clients send and that change no answer here."""

UNSUPPORTED: Mapping[str, tuple[object, ...]] = MappingProxyType({
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "grammar": ("",),
    "json_schema": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "samplers": (),
    "prompt_logprobs": (0,),
    "use_beam_search": (False,),
    "id_slot": (-1,),
})  # fmt: skip
"""Known fields that are not supported, with the values that ask for nothing; null always does."""

OPENAI_FIELDS = FieldRules(ALIASES, INERT, UNSUPPORTED)
"""What its endpoints tolerate."""


class ChatRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """Continue the last message, which is the assistant's, instead of beginning a turn."""
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the chat template: ``enable_thinking`` for example."""
    reasoning_effort: str | None = None
    """Given to the chat template, which may use it."""
    thinking_budget: int | None = None
    """Most tokens of reasoning; -1: no bound."""


class CompletionRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    """A text, several, token ids, or several lists of them."""
    logprobs: int | None = None
    echo: bool = False


FinishReason = Literal["stop", "length"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where prompt tokens came from."""

    cached_tokens: int = 0


class UsageBody(msgspec.Struct, frozen=True):
    """Token counts of a response; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


UsageField = UsageBody | UnsetType | None
"""``usage`` of a chunk: the counts, null where they come later, or absent."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct, frozen=True):
    """A token of the answer with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """The chat endpoint's log-probabilities."""

    content: list[TokenLogprobBody]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer of a chat."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    """What a reasoning model thought before."""
    reasoning: str | UnsetType = UNSET
    """The same, under the name that other clients look for."""


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat completion."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The response of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    timings: TimingsBody
    seed: int
    """What replays the answer, drawn by the server when the request had none."""


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageField = UNSET
    timings: TimingsBody | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class LegacyLogprobs(msgspec.Struct, frozen=True):
    """The legacy endpoint's log-probabilities: lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One text of a completion, or its part of an event."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: FinishReason | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The response of ``/v1/completions``, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageField = UNSET
    timings: TimingsBody | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    seed: int | UnsetType = UNSET


class ModelMeta(msgspec.Struct, frozen=True):
    """Facts of a model."""

    family: str
    context_tokens: int
    train_context_tokens: int
    vocab_size: int
    dtype: str
    quantization: str | None
    weight_bytes: int


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "llamacpp"
    """What clients of llama.cpp's server look for."""
    aliases: list[str]
    tags: list[str]
    capabilities: list[str]
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True):
    """What ``/v1/models`` lists."""

    data: list[ModelEntry]
    object: Literal["list"] = "list"


class InputTokensBody(msgspec.Struct, frozen=True):
    """How many tokens a conversation is."""

    input_tokens: int


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDetail


def _error_body(error: ApiError, _: str) -> ErrorBody:
    return ErrorBody(ErrorDetail(error.message, error.kind, error.param, error.code))


OPENAI = Api(error_type=ErrorBody, error_body=_error_body)
