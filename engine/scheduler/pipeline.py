"""Keeps one decode step in flight: step n+1 is submitted before step n is read.

Rows come and go between steps without emptying the pipeline. A row that joins is fed from the
host and its neighbours from the step in flight; a row that ended is left out; what was read is
committed.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from engine.engine import Engine
from engine.errors import InternalFault, RowError
from engine.outcome import SeqId, StepOutcome
from engine.scheduler.stats import Counters
from engine.steps import Ticket

logger = logging.getLogger(__name__)


REMEMBERED_STEPS = 8
"""Steps the estimate looks back on; the shortest of them counts, so that it errs to early."""

MARGIN_S = 0.001
"""What a thread may wake up late."""

BUSY_SHARE = 0.1
"""A read that blocked for less of its step found the device done: that step tells no length."""


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
        engine: Engine,
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
        faults = self._submit(tuple(seqs), is_ahead=ticket is not None) if seqs else []
        submitted_s = self._clock()
        outcomes = self._collect(ticket, rows) if ticket is not None else []
        self._pace.note(
            began_s=began_s,
            submitted_s=submitted_s,
            read_s=self._clock(),
            is_steady=bool(rows) and rows == self._rows,
        )
        return outcomes + faults

    def _submit(self, seqs: tuple[SeqId, ...], *, is_ahead: bool) -> list[StepOutcome]:
        try:
            self._ticket = self._engine.submit(seqs)
        except Exception as error:
            logger.exception("a step of %d rows could not be submitted", len(seqs))
            return _faults(seqs, error)
        self._rows = seqs
        self._counters.decode_steps += 1
        self._counters.lookahead_steps += is_ahead
        return []

    def _collect(self, ticket: Ticket, rows: tuple[SeqId, ...]) -> list[StepOutcome]:
        try:
            return self._engine.collect(ticket)
        except Exception as error:
            logger.exception("a step of %d rows could not be read", len(rows))
            return _faults(rows, error)


class StepPace:
    """Estimates how long the device is busy with the step in flight.

    The next step must be submitted before that one ends, and need not be submitted earlier: a
    request that comes meanwhile is then prefilled right behind the step in flight, not behind two.
    """

    def __init__(self) -> None:
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._host_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._read_s: float | None = None

    def note(self, *, began_s: float, submitted_s: float, read_s: float, is_steady: bool) -> None:
        """Learn from one tick.

        Args:
            began_s: when the next step's submission began.
            submitted_s: when it was submitted and the wait for the step before began.
            read_s: when that one was read.
            is_steady: whether both steps are of the same rows.
        """
        before_s, self._read_s = self._read_s, read_s
        if not is_steady or before_s is None:
            self.forget()
            self._read_s = read_s
            return
        step_s = read_s - before_s
        if read_s - submitted_s < BUSY_SHARE * step_s:
            # The device ran dry, perhaps because the estimate was too long.
            self.forget()
            self._read_s = read_s
            return
        self._steps_s.append(step_s)
        self._host_s.append(submitted_s - began_s)

    def forget(self) -> None:
        """Start anew: other rows take other times."""
        self._steps_s.clear()
        self._host_s.clear()
        self._read_s = None

    def slack_s(self, now_s: float) -> float:
        """Seconds from now after which the next step should be submitted; 0 when not known."""
        if self._read_s is None or len(self._steps_s) < REMEMBERED_STEPS // 2:
            return 0.0
        busy_until_s = self._read_s + min(self._steps_s)
        return max(0.0, busy_until_s - 2 * max(self._host_s) - MARGIN_S - now_s)


def _faults(seqs: Sequence[SeqId], error: Exception) -> list[StepOutcome]:
    row_error = error if isinstance(error, RowError) else InternalFault(error)
    return [StepOutcome(seq, None, error=row_error) for seq in seqs]
