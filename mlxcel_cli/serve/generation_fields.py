"""The body fields of generation that OpenAI's and llama.cpp's endpoints share.

Sampling fields come from `engine.params.SAMPLING_FIELDS`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from engine.errors import InvalidParams
from engine.params import SAMPLING_FIELDS, LoopRule, SamplingField
from engine.scheduler.queue import Priority
from mlxcel_cli.sampling_options import Bias
from mlxcel_cli.serve.generation import GenerationSpec

B = TypeVar("B", bound=msgspec.Struct)

ALIASES = MappingProxyType({
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "thinking_budget_tokens": "thinking_budget",
    **{alias: one.name for one in SAMPLING_FIELDS for alias in one.aliases},
})  # fmt: skip
"""Other spellings of fields."""

WrittenBiases = dict[str, float] | list[list[int | float | str | bool]]
"""Token id, as a string, to bias; or pairs of a token id or a text and a bias, or false: never."""

SAMPLING_NAMES = tuple(one.name for one in SAMPLING_FIELDS)


def with_sampling(base: type[B], names: Collection[str] = SAMPLING_NAMES) -> type[B]:
    """``base`` with an optional field for each sampling parameter of ``names``."""
    hints = [(one.name, _hint(one), None) for one in SAMPLING_FIELDS if one.name in names]
    made: Any = msgspec.defstruct(
        f"{base.__name__}Sampling",
        hints,
        bases=(base,),
        forbid_unknown_fields=True,
        kw_only=True,
        frozen=True,
    )
    extended: type[B] = made
    return extended


def sampling_of(request: msgspec.Struct) -> dict[str, Any]:
    """The sampling parameters that a request's body has, by name."""
    return {name: getattr(request, name, None) for name in SAMPLING_NAMES if name != "logit_bias"}


def _hint(one: SamplingField) -> Any:
    kind: Any = list[str] if one.type is list else one.type
    if one.name == "logit_bias":
        kind = WrittenBiases
    return Annotated[kind | None, msgspec.Meta(description=one.help)]


if TYPE_CHECKING:
    _Sampling = msgspec.Struct
else:
    _Sampling = with_sampling(msgspec.Struct)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None
    """One more chunk with the token counts, before ``[DONE]``."""
    continuous_usage_stats: bool | None = None
    """Token counts so far in every chunk."""
    include_obfuscation: bool | None = None
    """Inert: nothing is obfuscated here."""


class GenerationRequest(_Sampling, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What generation endpoints take: length, stops, sampling, streaming."""

    model: str = "default"
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    max_tokens: int | None = None
    """-1: until the model ends or the context is full."""
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    timings_per_token: bool = False
    """``timings`` so far in every event of a stream."""
    return_progress: bool = False
    """Events that report how much of the prompt was read."""
    loop_min_pattern: int = 1
    loop_max_pattern: int = 0
    """Longest pattern whose repetition ends the answer; 0 is off."""
    loop_min_count: int = 12
    speculative: bool = True
    """False: nothing is drafted for this answer where the server drafts; true changes nothing."""
    cache_prompt: bool = True
    """False: the prompt cache is neither looked into nor added to."""
    prompt_cache_key: str | None = None
    """Only requests of the same key share what the prompt cache holds."""
    user: str | None = None
    """Stands for the key where none is given."""

    def spec(self, priority: Priority, **others: Any) -> GenerationSpec:
        """What the request asks for.

        Args:
            priority: of its header.
            others: fields of `GenerationSpec` that depend on the endpoint.

        Raises:
            InvalidParams: a value is out of its range; names the field.
        """
        return GenerationSpec(
            sampling=sampling_of(self),
            logit_bias=_biases(getattr(self, "logit_bias", None)),
            n=self.n,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stops=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_ids=self.stop_token_ids or (),
            ignore_eos=self.ignore_eos,
            loop=LoopRule(self.loop_min_pattern, self.loop_max_pattern, self.loop_min_count),
            priority=priority,
            is_speculative=self.speculative,
            uses_cache=self.cache_prompt,
            cache_key=self.prompt_cache_key or self.user or "",
            **others,
        )


def _biases(written: WrittenBiases | None) -> tuple[Bias, ...] | None:
    if written is None:
        return None
    if isinstance(written, Mapping):
        return tuple((_id_of(key), value) for key, value in written.items())
    return tuple(map(_pair, written))


def _id_of(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 10):
        raise InvalidParams("logit_bias", f"{key!r} is not a token id, as a string")
    return int(key)


def _pair(one: Sequence[int | float | str | bool]) -> Bias:
    token, value = one if len(one) == 2 else (True, True)
    is_token = isinstance(token, int | str) and not isinstance(token, bool)
    if not is_token or value is True or isinstance(value, str):
        raise InvalidParams("logit_bias", "must hold pairs of a token id or text and a number")
    assert isinstance(token, int | str)
    return token, -math.inf if value is False else float(value)
