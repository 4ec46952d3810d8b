"""Keeps one decode step in flight: step n+1 is submitted before step n is read.

Rows come and go between steps without emptying the pipeline. A row that joins is fed from the
host and its neighbours from the step in flight; a row that ended is left out; what was read is
committed. This is where a step that drafts will take its place.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.errors import InternalFault, RowError
from engine.outcome import SeqId, StepOutcome
from engine.scheduler.pace import StepPace
from engine.scheduler.stats import Counters
from engine.steps import Ticket

logger = logging.getLogger(__name__)


class StepEngine(Protocol):
    """What the pipeline asks of the engine."""

    def submit(self, seqs: Sequence[SeqId]) -> Ticket:
        """Dispatch one step."""

    def collect(self, ticket: Ticket) -> list[StepOutcome]:
        """Read one step."""


class Pipeline:
    """The steps of one engine.

    Args:
        engine: where the rows live.
        counters: counts the steps.
        clock: seconds, monotonic.
        is_pipelined: False reads each step before the next is submitted (for debugging).
    """

    def __init__(
        self,
        engine: StepEngine,
        counters: Counters,
        clock: Callable[[], float],
        *,
        is_pipelined: bool = True,
    ) -> None:
        self._engine = engine
        self._counters = counters
        self._clock = clock
        self._is_pipelined = is_pipelined
        self._pace = StepPace()
        self._ticket: Ticket | None = None
        self._rows: tuple[SeqId, ...] = ()

    @property
    def in_flight(self) -> tuple[SeqId, ...]:
        """Rows of the step that was submitted and not read."""
        return self._rows

    def advance(self, seqs: Sequence[SeqId]) -> list[StepOutcome]:
        """Submit a step of ``seqs``, then read the step before it.

        Whatever the engine raises becomes the error of the rows of that step.
        """
        outcomes = self._advance(seqs)
        return outcomes if self._is_pipelined else outcomes + self._advance(())

    def forget(self, seq: SeqId) -> None:
        """A row was closed; a step that is nobody's any more is dropped unread."""
        self._rows = tuple(row for row in self._rows if row != seq)
        if not self._rows:
            self._ticket = None

    def slack_s(self) -> float:
        """Seconds for which the step in flight keeps the device busy without the next one."""
        return self._pace.slack_s(self._clock()) if self._ticket is not None else 0.0

    def _advance(self, seqs: Sequence[SeqId]) -> list[StepOutcome]:
        ticket, rows = self._ticket, self._rows
        self._ticket, self._rows = None, ()
        began_s = self._clock()
        faults = self._submit(tuple(seqs), beside=ticket is not None) if seqs else []
        submitted_s = self._clock()
        outcomes = self._collect(ticket, rows) if ticket is not None else []
        self._pace.note(
            began_s=began_s,
            submitted_s=submitted_s,
            read_s=self._clock(),
            is_steady=bool(rows) and rows == self._rows,
        )
        return outcomes + faults

    def _submit(self, seqs: tuple[SeqId, ...], *, beside: bool) -> list[StepOutcome]:
        try:
            self._ticket = self._engine.submit(seqs)
        except Exception as error:
            logger.exception("a step of %d rows could not be submitted", len(seqs))
            return _faults(seqs, error)
        self._rows = seqs
        self._counters.decode_steps += 1
        self._counters.lookahead_steps += beside
        return []

    def _collect(self, ticket: Ticket, rows: tuple[SeqId, ...]) -> list[StepOutcome]:
        try:
            return self._engine.collect(ticket)
        except Exception as error:
            logger.exception("a step of %d rows could not be read", len(rows))
            return _faults(rows, error)


def _faults(seqs: Sequence[SeqId], error: Exception) -> list[StepOutcome]:
    row_error = error if isinstance(error, RowError) else InternalFault(error)
    return [StepOutcome(seq, None, error=row_error) for seq in seqs]
