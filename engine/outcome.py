"""What leaves the engine: plain frozen values, never arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from engine.errors import RowError

if TYPE_CHECKING:
    from engine.finish import FinishCause

SeqId = NewType("SeqId", int)
"""Handle of an open row; never a token id."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability under the model, before the sampling chain."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token's log-probability and the most likely tokens', best first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step did to one row."""

    seq: SeqId
    token: int | None
    """The token that was drawn; None when the row failed before it had one."""
    text: str = ""
    """Text that became safe to show with this token."""
    finish: FinishCause | None = None
    error: RowError | None = None
    logprobs: TokenLogprobs | None = None

    @property
    def is_final(self) -> bool:
        """Whether the row is done, well or badly."""
        return self.finish is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class PrefillOutcome:
    """What one prefill chunk did."""

    seq: SeqId
    done_tokens: int
    """Prompt tokens whose KV is there."""
    prompt_tokens: int
    first: StepOutcome | None = None
    """The first token of the answer, after the last chunk."""


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What one verify round did: the tokens written, and how many of them were drafted."""

    seq: SeqId
    steps: tuple[StepOutcome, ...]
    drafted: int
    accepted: int
    error: RowError | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and counts of one answer."""

    prompt_n: int
    prompt_s: float
    predicted_n: int
    predicted_s: float
    """From the first token to the last."""
    ttft_s: float
    """From the request to the first token."""
    cache_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    draft_rounds: int = 0

    @property
    def draft_kind(self) -> str | None:
        """What drafted; None when no draft was verified."""
        return "prompt-lookup" if self.draft_rounds else None

    @property
    def prompt_per_second(self) -> float:
        """Prompt tokens a second; 0 when nothing was evaluated."""
        return self.prompt_n / self.prompt_s if self.prompt_s > 0 else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Tokens a second after the first one; 0 below two tokens."""
        if self.predicted_n < 2 or self.predicted_s <= 0:
            return 0.0
        return (self.predicted_n - 1) / self.predicted_s
