"""What a user can change during a chat: sampling, length, prompt lookup, thinking, system text."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from engine.errors import InvalidParams
from engine.models.chat_sampling import chat_sampling
from engine.params import SamplingParams
from mlxcel_cli.answers import AnswerRequest, ModelReport
from mlxcel_cli.config import setting_types, value_from_text
from mlxcel_cli.engine_requests import answer_request
from mlxcel_cli.lookup_options import LookupOptions
from mlxcel_cli.options import LengthOptions
from mlxcel_cli.sampling_options import SamplingOptions

_SAMPLING = frozenset(one.name for one in fields(SamplingOptions))
_LENGTH = frozenset(one.name for one in fields(LengthOptions))


@dataclass(slots=True)
class ChatSettings:
    """The settings of a chat; mutable: they change between two answers."""

    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    length: LengthOptions = field(default_factory=LengthOptions)
    system: str = ""
    context_tokens: int | None = None
    lookup: LookupOptions = field(default_factory=LookupOptions)
    lookup_texts: tuple[tuple[str, str], ...] = ()
    """Name and content of texts that drafts may come from too."""
    thinking: bool = True

    def set(self, name: str, text: str) -> str:
        """Change one setting, named as on the command line; its name and value, as set.

        Raises:
            InvalidParams: no such setting, or the value is out of its range.
        """
        key = name.strip().lstrip("-").replace("-", "_")
        if key not in _SAMPLING | _LENGTH:
            raise InvalidParams("/set", f"{name!r} is no setting of a chat; try /set alone")
        value: Any = value_from_text(name, setting_types()[key], text.strip())
        before = self.sampling, self.length
        if key in _SAMPLING:
            self.sampling = replace(self.sampling, **{key: value})
        else:
            self.length = replace(self.length, **{key: value})
        try:
            self.request(None)
        except InvalidParams:
            self.sampling, self.length = before
            raise
        return f"{key.replace('_', '-')} = {value}"

    @property
    def drafts(self) -> bool:
        """Whether prompt lookup is on."""
        return bool(self.lookup.prompt_lookup)

    def switch_lookup(self, *, on: bool) -> None:
        """Turn prompt lookup on or off."""
        self.lookup = replace(self.lookup, prompt_lookup=on)

    def in_force(self, model: ModelReport | None) -> Iterator[tuple[str, object]]:
        """Each setting that is on, by its name on the command line."""
        request = self.request(model)
        neutral = SamplingParams()
        for one in fields(SamplingParams):
            value = getattr(request.sampling, one.name)
            always = one.name in ("temperature", "top_p", "top_k")
            if one.name not in ("logit_bias", "logprobs") and (
                always or value != getattr(neutral, one.name)
            ):
                yield one.name.replace("_", "-"), value
        yield "max-tokens", "no bound" if request.max_tokens is None else request.max_tokens
        if request.stops:
            yield "stop", ", ".join(repr(stop) for stop in request.stops)

    def request(self, model: ModelReport | None) -> AnswerRequest:
        """The request for an answer, without its prompt.

        Raises:
            InvalidParams: a value is out of its range.
        """
        defaults = chat_sampling({} if model is None else model.sampling)
        request = answer_request(
            self.sampling,
            self.length,
            self.lookup,
            defaults=defaults,
            context_tokens=self.context_tokens,
        )
        return replace(request, lookup_texts=self.lookup_texts, reuses_kv=True)
