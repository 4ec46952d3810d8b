"""What a client asks of the scheduler, and what it is told: frozen values, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.finish import FinishCause
from engine.outcome import Timings, TokenLogprobs, Usage
from engine.params import SequenceParams
from engine.prompt_cache.key import CacheUse
from engine.scheduler.queue import Priority

if TYPE_CHECKING:
    from engine.sequence import RowHooks


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One answer to write. Choices of ``n`` are requests of their own, each with its ``choice``."""

    id: str
    """Unique among the requests that wait or run; every event names it."""
    params: SequenceParams
    stops: tuple[str, ...] = ()
    """Stop strings."""
    keep_texts: tuple[str, ...] = ()
    """Special tokens that are text all the same: the marks of a model's reasoning."""
    priority: Priority = Priority.NORMAL
    hooks: RowHooks | None = None
    """What a feature decides for the row; such a row is never preempted."""
    cache: CacheUse | None = field(default_factory=CacheUse)
    """How it uses the prompt cache; None: neither looks up nor leaves anything."""
    is_speculative: bool = True
    """False opts out of the drafts that the server makes; nothing opts in."""


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


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How much of the prompt was read."""

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
    """Seconds that reading the prompt took."""
    decode_s: float = field(default=0.0, compare=False)
    """Seconds from the first token to the newest."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer; its text has been told by the deltas before."""

    id: str
    finish: FinishCause
    stop_match: str | None
    """The stop string that ended it."""
    usage: Usage
    timings: Timings
    seed: int
    queue_s: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether the context cut the answer off."""
        return self.finish is FinishCause.CONTEXT_EXHAUSTED


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer broke off; what was told before stays valid."""

    id: str
    error: EngineError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The request was cancelled, and its slot is free."""

    id: str
    usage: Usage


Event = Started | PrefillProgress | Delta | Done | Failed | Cancelled
"""What `BatchScheduler.tick` returns; Done, Failed and Cancelled are a request's last."""
