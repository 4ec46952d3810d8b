"""Follows each choice of a response: reasoning and answer, log-probabilities, counts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from engine.events import Delta, Done
from engine.finish import FinishCause
from engine.outcome import Timings, TokenLogprob, TokenLogprobs
from engine.text.thinking import TextKind, TextPart, ThinkingFilter
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.schema.responses import (
    ChoiceLogprobs,
    FinishReason,
    LegacyLogprobs,
    PromptTokensDetails,
    TimingsBody,
    TokenLogprobBody,
    TopLogprob,
    UsageBody,
)

LOWEST = -3.4028234663852886e38
"""JSON has no infinity: the lowest float32 stands for it."""

_REASONS: dict[FinishCause, FinishReason] = {
    FinishCause.LENGTH: "length",
    FinishCause.CONTEXT_EXHAUSTED: "length",
}


@dataclass(frozen=True, slots=True)
class Written:
    """What a choice grew by."""

    parts: tuple[TextPart, ...] = ()
    places: tuple[TokenLogprobs, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.parts and not self.places


@dataclass(slots=True)
class Choice:
    """One row of a response, from its first token to its last."""

    index: int
    thinking: ThinkingFilter
    prompt_tokens: int
    has_stops: bool = False
    """Whether text may be held back, and tokens dropped, because of a stop string."""
    done: Done | None = None
    completion_tokens: int = 0
    parts: list[TextPart] = field(default_factory=list)
    places: list[TokenLogprobs] = field(default_factory=list)
    _held: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    _token_bytes: int = 0
    _text_bytes: int = 0

    def take(self, delta: Delta, tokenizer: Tokenizer) -> Written:
        """Note a delta; what of it may be told."""
        self.completion_tokens = delta.completion_tokens
        self._text_bytes += len(delta.text.encode())
        for place in delta.logprobs:
            self._held.append((self._token_bytes, place))
            self._token_bytes += len(tokenizer.piece_bytes(place.chosen.token))
        return self._tell(self.thinking.push(delta.text), self._covered(is_over=False))

    def end(self, done: Done) -> Written:
        """Note the end; what was held back until now."""
        self.done = done
        self.completion_tokens = done.usage.completion_tokens
        return self._tell(self.thinking.flush(), self._covered(is_over=True))

    def text(self, kind: TextKind) -> str:
        """All text of one kind."""
        return "".join(part.text for part in self.parts if part.kind is kind)

    @property
    def finish_reason(self) -> FinishReason:
        """OpenAI's word for how it ended."""
        assert self.done is not None
        return _REASONS.get(self.done.finish, "stop")

    def _tell(self, parts: list[TextPart], places: tuple[TokenLogprobs, ...]) -> Written:
        self.parts += parts
        self.places += places
        return Written(tuple(parts), places)

    def _covered(self, *, is_over: bool) -> tuple[TokenLogprobs, ...]:
        """Places whose token is in the text that was told, at least in part."""
        stopped = self.done is not None and self.done.stop_match is not None
        if not self.has_stops or (is_over and not stopped):
            told = len(self._held)
        else:
            told = sum(start < self._text_bytes for start, _ in self._held)
        places = tuple(place for _, place in self._held[:told])
        self._held = [] if is_over else self._held[told:]
        return places


def usage_body(choices: Sequence[Choice]) -> UsageBody:
    """Counts of a response so far; each prompt counts once."""
    prompts = sum(choice.prompt_tokens for choice in choices)
    written = sum(choice.completion_tokens for choice in choices)
    cached = sum(one.done.usage.cached_tokens for one in choices if one.done and one.prompt_tokens)
    return UsageBody(prompts, written, prompts + written, PromptTokensDetails(cached))


def timings_body(timings: Timings) -> TimingsBody:
    """llama.cpp's figures; the rate of writing leaves the first token out."""
    gaps = timings.predicted_n - 1
    drafted = timings.draft_rounds > 0
    return TimingsBody(
        cache_n=timings.cache_n,
        prompt_n=timings.prompt_n,
        prompt_ms=_ms(timings.prompt_s),
        prompt_per_token_ms=_ms(timings.prompt_s / timings.prompt_n) if timings.prompt_n else 0.0,
        prompt_per_second=round(timings.prompt_per_second, 3),
        predicted_n=timings.predicted_n,
        predicted_ms=_ms(timings.predicted_s),
        predicted_per_token_ms=_ms(timings.predicted_s / gaps) if gaps > 0 else 0.0,
        predicted_per_second=round(timings.predicted_per_second, 3),
        draft_n=timings.draft_n if drafted else UNSET,
        draft_n_accepted=timings.draft_n_accepted if drafted else UNSET,
        draft_rounds=timings.draft_rounds if drafted else UNSET,
        draft_kind="prompt-lookup" if drafted else UNSET,
    )


def chat_logprobs_body(
    places: Sequence[TokenLogprobs], tokenizer: Tokenizer
) -> ChoiceLogprobs | None:
    """Places in the chat endpoint's shape; None without any."""
    if not places:
        return None
    content = []
    for place in places:
        token, raw = _named(place.chosen, tokenizer)
        top = [
            TopLogprob(text, finite(one.logprob), list(piece))
            for one in place.top
            for text, piece in [_named(one, tokenizer)]
        ]
        content.append(TokenLogprobBody(token, finite(place.chosen.logprob), list(raw), top))
    return ChoiceLogprobs(content)


def legacy_logprobs_body(
    places: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, offset: int
) -> LegacyLogprobs | None:
    """Places in the legacy endpoint's shape; ``offset`` is where the first one's text begins."""
    if not places:
        return None
    tokens, logprobs, tops, offsets = [], [], [], []
    for place in places:
        token, _ = _named(place.chosen, tokenizer)
        top = {_named(one, tokenizer)[0]: finite(one.logprob) for one in reversed(place.top)}
        if top:
            top.setdefault(token, finite(place.chosen.logprob))
        tokens.append(token)
        logprobs.append(finite(place.chosen.logprob))
        tops.append(dict(reversed(top.items())))
        offsets.append(offset)
        offset += len(token)
    return LegacyLogprobs(tokens, logprobs, tops, offsets)


def _named(one: TokenLogprob, tokenizer: Tokenizer) -> tuple[str, bytes]:
    piece = tokenizer.piece_bytes(one.token)
    return piece.decode("utf-8", errors="replace"), piece


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    # The comparison is false for a NaN too.
    return logprob if logprob > LOWEST else LOWEST


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
