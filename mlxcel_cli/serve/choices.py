"""The record of each choice of a response: its text, tokens, log-probabilities and progress."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from engine.events import Delta, Done, Started
from engine.outcome import TokenLogprob, TokenLogprobs
from engine.text.answer_text import AnswerText, TextDelta, ThinkingMarks
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.generation import Generation
from mlxcel_cli.serve.progress import PrefillClock, PromptProgress, TimingsBody
from mlxcel_cli.serve.prompts import EncodedPrompt

LOWEST = -3.4028234663852886e38
"""JSON has no infinity: the lowest float32 stands for it."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a choice grew by."""

    deltas: tuple[TextDelta, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    tokens: tuple[int, ...] = ()
    timings: TimingsBody | UnsetType = UNSET
    """So far, where they are asked for."""

    @property
    def is_visible(self) -> bool:
        """Whether there is text or a log-probability to show."""
        return bool(self.deltas or self.logprobs)

    @property
    def text(self) -> str:
        """Its text, of any kind."""
        return "".join(delta.text for delta in self.deltas)


@dataclass(slots=True)
class Choice:
    """One row of a response, from its first token to its last."""

    index: int
    row_id: str
    prompt: EncodedPrompt
    prompt_tokens: int
    """Counted in the usage: 0 for a prompt that an earlier choice has."""
    tokenizer: Tokenizer
    answer: AnswerText
    has_stops: bool = False
    """Whether text may be held back, and tokens dropped, because of a stop string."""
    slot: int = -1
    done: Done | None = None
    completion_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prefill: PrefillClock = field(init=False)
    _pending: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    _token_bytes: int = 0
    _text_bytes: int = 0

    def __post_init__(self) -> None:
        self.prefill = PrefillClock(len(self.prompt.ids))

    def start(self, event: Started) -> PromptProgress | None:
        """Note its slot; what the prompt cache had of its prompt."""
        self.slot = event.slot
        return self.prefill.start(event)

    def extend(self, delta: Delta, *, has_timings: bool = False) -> Growth:
        """Add a delta; what of it can be shown."""
        self.completion_tokens = delta.completion_tokens
        self.tokens += delta.tokens
        self._text_bytes += len(delta.text.encode())
        for one in delta.logprobs:
            self._pending.append((self._token_bytes, one))
            self._token_bytes += len(self.tokenizer.piece_bytes(one.chosen.token))
        deltas, logprobs = self.answer.push(delta.text), self._covered(is_over=False)
        timings = self.prefill.timings(delta) if has_timings else UNSET
        return self._grown(Growth(tuple(deltas), logprobs, delta.tokens, timings))

    def end(self, done: Done) -> Growth:
        """Note the end; what was held back until now."""
        self.done = done
        self.completion_tokens = done.usage.completion_tokens
        return self._grown(Growth(tuple(self.answer.flush()), self._covered(is_over=True)))

    @property
    def ending(self) -> Done:
        """How it ended; it has."""
        assert self.done is not None
        return self.done

    def _grown(self, growth: Growth) -> Growth:
        self.logprobs += growth.logprobs
        return growth

    def _covered(self, *, is_over: bool) -> tuple[TokenLogprobs, ...]:
        """The log-probabilities of tokens whose text was shown, at least in part."""
        stopped = self.done is not None and self.done.stop_match is not None
        if not self.has_stops or (is_over and not stopped):
            shown = len(self._pending)
        else:
            shown = sum(start < self._text_bytes for start, _ in self._pending)
        covered = tuple(one for _, one in self._pending[:shown])
        self._pending = [] if is_over else self._pending[shown:]
        return covered


def choices_of(
    generation: Generation, tokenizer: Tokenizer, marks: Sequence[ThinkingMarks] = ()
) -> tuple[Choice, ...]:
    """A record for each row of a request.

    Args:
        generation: the request's rows.
        tokenizer: the model's.
        marks: of reasoning that is shown apart from the answer.
    """
    per_prompt = len(generation.rows) // len(generation.prompts)
    choices = []
    for index, row in enumerate(generation.rows):
        prompt = generation.prompt_of(index)
        choices.append(
            Choice(
                index,
                row.id,
                prompt,
                # A prompt is counted with the first of its choices.
                prompt_tokens=0 if index % per_prompt else len(prompt.ids),
                tokenizer=tokenizer,
                answer=prompt.answer_text(marks),
                has_stops=bool(row.stops),
            )
        )
    return tuple(choices)


def token_text(one: TokenLogprob, tokenizer: Tokenizer) -> tuple[str, bytes]:
    """A token's text, and its bytes, which may be no whole text."""
    raw = tokenizer.piece_bytes(one.token)
    return raw.decode("utf-8", errors="replace"), raw


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    # The comparison is false for a NaN too.
    return logprob if logprob > LOWEST else LOWEST
