"""What a request emits from its start to its end: frozen values, no arrays."""

from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.finish import FinishCause
from engine.lookup.eligibility import Refusal
from engine.lookup.stats import LookupStats
from engine.outcome import Timings, TokenLogprobs, Usage


@dataclass(frozen=True, slots=True)
class Started:
    """The request has a slot and passed every check."""

    id: str
    slot: int
    prompt_tokens: int
    seed: int
    queue_s: float
    """How long it waited."""
    cached_tokens: int = 0
    """Prompt tokens that the prompt cache had."""
    lookup_refused: Refusal | None = None
    """Why it decodes without the prompt lookup that was asked for."""


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How much of the prompt is prefilled."""

    id: str
    done_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one tick added to an answer: all its tokens, and the text that is safe to show."""

    id: str
    text: str
    """Possibly empty: characters and stop strings may be incomplete."""
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    """One per token when the request asked, else none."""
    completion_tokens: int
    """Tokens of the answer so far."""
    prefill_s: float = field(default=0.0, compare=False)
    """Seconds the prefill took."""
    decode_s: float = field(default=0.0, compare=False)
    """Seconds from the first token to the newest."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer; its text was in the deltas before."""

    id: str
    finish: FinishCause
    stop_match: str | None
    """The stop string that ended it."""
    usage: Usage
    timings: Timings
    seed: int
    queue_s: float = 0.0
    lookup: LookupStats | None = None
    """What prompt lookup did, when it was on."""
    lookup_dropped: str | None = None
    """Why it ended before the answer did, if it did."""

    @property
    def truncated(self) -> bool:
        """Whether the context cut the answer off."""
        return self.finish is FinishCause.CONTEXT_EXHAUSTED


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer broke off; what was emitted before stays valid."""

    id: str
    error: EngineError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The request was cancelled, and its slot is free."""

    id: str
    usage: Usage


Event = Started | PrefillProgress | Delta | Done | Failed | Cancelled
"""What a request emits; Done, Failed and Cancelled are a request's last."""
