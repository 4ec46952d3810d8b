"""The one mutable record of a running request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from engine.errors import RowError
from engine.finish import FinishCause, FinishRules
from engine.outcome import SeqId
from engine.params import SequenceParams
from engine.sampling.row_sampler import RowSampler, SamplerSnapshot
from engine.text.row_text import RowText

if TYPE_CHECKING:
    import numpy as np

    from engine.ticket import Ticket


HOOK_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a faulty mask, text or finish hook raises; it ends the row, not the step."""


class Phase(Enum):
    """Where a sequence stands."""

    PREFILL = auto()
    DECODE = auto()
    FINISHED = auto()


class RowHooks(Protocol):
    """What a feature may decide for one row; every call sees the committed ids.

    A row with hooks is drawn once its newest token is on the host (the row pipeline).
    """

    def mask(self, ids: Sequence[int]) -> np.ndarray | None:
        """float32[V] added to the logits of the next token; None: nothing."""

    def finish(self, ids: Sequence[int]) -> FinishCause | None:
        """A reason to stop after the newest token: LENGTH or STRUCTURED_STOP."""


@dataclass(frozen=True, slots=True)
class SuspendedRow:
    """A row that gave its KV up and waits to go on in the same engine.

    Its text side is the very one it had, so stop strings and characters that were half there
    are completed as if it had never stopped.
    """

    params: SequenceParams
    """The request, with the seed it drew and the context bound it had."""
    ids: tuple[int, ...]
    """Prompt and answer so far: what is to be read again."""
    sampler: SamplerSnapshot
    text: RowText | None
    hooks: RowHooks | None


class Row:
    """A request from ``open`` to ``close``.

    The length law: outside a forward, KV holds prompt + written - 1 tokens while the row
    decodes, prompt + written after an end token, and one more for each ticket in flight.
    """

    __slots__ = (
        "failed",
        "hooks",
        "ids",
        "in_flight",
        "lost",
        "params",
        "phase",
        "prompt_tokens",
        "rules",
        "sampler",
        "seq",
        "slot",
        "text",
    )

    def __init__(
        self,
        seq: SeqId,
        params: SequenceParams,
        rules: FinishRules,
        sampler: RowSampler,
        text: RowText | None,
        hooks: RowHooks | None,
    ) -> None:
        self.seq = seq
        self.params = params
        self.rules = rules
        self.sampler = sampler
        self.text = text
        self.hooks = hooks
        self.slot = -1
        """Row of the storage, set by the engine."""
        self.ids: list[int] = list(params.prompt_ids)
        """Prompt and committed answer."""
        self.prompt_tokens = len(params.prompt_ids)
        self.phase = Phase.PREFILL
        self.in_flight: list[Ticket] = []
        """Submitted and not yet collected, oldest first; at most two."""
        self.failed = False
        self.lost: RowError | None = None
        """Why the row is gone without having been in the step that failed."""

    @property
    def written(self) -> int:
        """Tokens of the answer so far."""
        return len(self.ids) - self.prompt_tokens

    @property
    def generated(self) -> list[int]:
        """The answer so far (a copy)."""
        return self.ids[self.prompt_tokens :]

    @property
    def needs_host(self) -> bool:
        """Whether a draw has to wait until the newest token is on the host."""
        return self.hooks is not None or self.sampler.needs_host

    def __repr__(self) -> str:
        return (
            f"Row({self.seq}, {self.phase.name}, prompt={self.prompt_tokens}, "
            f"written={self.written}, in_flight={len(self.in_flight)})"
        )
