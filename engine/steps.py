"""Decode steps: dispatching one for some rows, and reading it when its turn comes.

``submit`` reads nothing from the device, so that step n+1 is on its way before token n is read.
On a CPU it is only built: starting a step there takes the thread until the last hundred or so
operations are left (MLX 0.32 lets no more wait), and token n would be sent a step late. It is
started by ``flush``, once the caller has sent token n, at the latest by the next ``submit``.
What goes wrong while a step is dispatched or drawn is kept in its ticket and reported when that is
collected. A row has at most two steps outstanding, and none goes behind a step whose own draw still
waits for the host: there is no token yet that its forward could be fed.
"""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx

from engine import guard
from engine.errors import EvalFailed, InvalidParams, RowError
from engine.finish import commit, fail
from engine.forwards import Forwards
from engine.kv.storage import Storage
from engine.outcome import StepOutcome
from engine.rows import Phase, Row, RowTable
from engine.sampling.plan import Draw, DrawReading, read_draw

MAX_OUTSTANDING = 2
"""Steps of a row that are submitted and not collected."""


class Ticket:
    """One step of some rows, on its way.

    Attributes:
        rows: the sequences of the step, each with its entry in the arrays.
        newest: int32[W], the token each row fed.
        logits: float[W, V], kept only while the draw has to wait for the host.
        draw: the tokens drawn, lazy; None while it waits.
        readable: int32[W], the drawn tokens, -1 where a row's logits were not finite.
        appended: whether the forward was built, so that each row has one more append.
        is_unstarted: whether what is built waits to be started.
        held: what is to be started.
        error: why the whole step failed.
        faults: why single rows failed before they could be read.
    """

    __slots__ = (
        "appended", "draw", "error", "faults", "held", "is_unstarted", "logits", "newest",
        "readable", "rows",
    )  # fmt: skip

    def __init__(self, rows: dict[Row, int], *, is_unstarted: bool = False) -> None:
        self.rows = rows
        self.is_unstarted = is_unstarted
        self.held: list[mx.array] = []
        self.newest: mx.array | None = None
        self.logits: mx.array | None = None
        self.draw: Draw | None = None
        self.readable: mx.array | None = None
        self.appended = False
        self.error: RowError | None = None
        self.faults: dict[Row, RowError] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether a row still waits for it."""
        return any(self in row.in_flight for row in self.rows)

    @property
    def waits(self) -> bool:
        """Whether it cannot be drawn before an older step is read: a row's draw needs the host."""
        if self.draw is not None or self.error is not None:
            return False
        return any(self in row.in_flight[1:] for row in self.rows)


class Steps:
    """Steps of the rows of a table, and what reading a draw does to a row.

    Plain steps, prefill and verify rounds share `read`, `commit` and `end`, so that there is one
    way a token is committed and one way a failure ends rows.

    Args:
        forwards: runs the model.
        table: the rows.
        storage: where their KV lives.
        clear_every: generated tokens between cache clears; 0 is never.
        holds: whether a step behind one that is not read is built only, until ``flush``.
    """

    def __init__(
        self,
        forwards: Forwards,
        table: RowTable,
        storage: Storage,
        *,
        clear_every: int,
        holds: bool,
    ) -> None:
        self.health = guard.Health()
        self._forwards = forwards
        self._table = table
        self._storage = storage
        self._clear_every = clear_every
        self._holds = holds
        self._latest: Ticket | None = None

    def submit(self, rows: list[Row]) -> Ticket:
        """Dispatch one step of rows that decode.

        A step that cannot be dispatched gives a ticket whose rows fail when it is collected.

        Raises:
            InvalidParams: a row has two outstanding, or one that waits; nothing happened.
        """
        assert rows, "a step has at least one row"
        assert all(row.lost or row.phase is Phase.DECODE for row in rows)
        if not all(_takes_another(row) for row in rows):
            raise InvalidParams("step", "a row has steps outstanding that must be collected first")
        self._table.fit()
        self.flush()
        is_unstarted = self._holds and self._latest is not None
        alive = [row for row in rows if row.lost is None]
        ticket = self._latest = Ticket(self._forwards.layout(alive), is_unstarted=is_unstarted)
        ticket.faults = {row: row.lost for row in rows if row.lost is not None}
        if ticket.rows:
            self._dispatch(ticket)
        for row in rows:
            row.in_flight.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> list[StepOutcome]:
        """Read a ticket's tokens and finish each of its rows that still waits for it."""
        reading: DrawReading | None = None
        failure: RowError | None = None
        # A ticket no row waits for is not read: its failure was reported with the step before.
        if ticket.is_awaited:
            try:
                reading = self._read_ticket(ticket)
            except RowError as error:
                failure = error
        # Reading may have drawn, and a draw finds faults.
        outcomes = [
            self.finish(row, fail(row, error))
            for row, error in ticket.faults.items()
            if ticket in row.in_flight
        ]
        rows = {row: i for row, i in ticket.rows.items() if ticket in row.in_flight}
        if failure is not None:
            return outcomes + self.end(rows, failure)
        later = {row.in_flight[1] for row in rows if len(row.in_flight) > 1}
        for row, index in rows.items():
            assert reading is not None
            row.in_flight.remove(ticket)
            outcomes.append(self.commit(row, reading, index))
        self._draw_waiting(later)
        return outcomes

    def forget(self) -> None:
        """Let go of the newest step once nobody waits for it: unstarted, it would keep all KV."""
        if self._latest is not None and not self._latest.is_awaited:
            self._latest = None

    def flush(self) -> None:
        """Start the step that was only built, if a row still waits for it."""
        self.forget()
        ticket = self._latest
        if ticket is None or not ticket.is_unstarted:
            return
        try:
            self._forwards.release(ticket)
        except RowError as error:
            ticket.error = error

    def read(self, drawn: Draw, tokens: mx.array) -> DrawReading:
        """Wait for a draw and read it.

        Args:
            drawn: what was drawn.
            tokens: its tokens, the unusable ones marked (`Draw.readable`).

        Raises:
            EvalFailed: the backend threw.
        """
        values = [guard.read(array) for array in (tokens, *drawn.arrays()[1:])]
        self.health.succeeded()
        return read_draw(drawn, values)

    def commit(self, row: Row, reading: DrawReading, index: int) -> StepOutcome:
        """Finish one row's token of a reading."""
        token = reading.tokens[index]
        row.sampler.observe(reading.feedback[index])
        return self.finish(row, commit(row, token, reading.logprobs[index]))

    def finish(self, row: Row, outcome: StepOutcome) -> StepOutcome:
        """Cut what a finished row has in flight; a failed cut beats any finish, not an error."""
        if not outcome.is_final:
            if self._clear_every and row.written % self._clear_every == 0:
                mx.clear_cache()
            return outcome
        ahead = row.appended_ahead
        row.in_flight.clear()
        if row.lost is not None:
            return outcome  # Its slot is another row's by now.
        try:
            self._storage.rewind(row.slot, ahead)
        except RowError as error:
            return fail(row, error) if outcome.error is None else outcome
        return outcome

    def end(self, rows: Iterable[Row], error: RowError) -> list[StepOutcome]:
        """End the rows of a failed forward or read; it counts once, however many they are."""
        if isinstance(error, EvalFailed):
            self.health.failed()
            self._check_storage(error)
        outcomes = []
        for row in rows:
            row.in_flight.clear()
            outcomes.append(fail(row, error))
        return outcomes

    def _dispatch(self, ticket: Ticket) -> None:
        try:
            self._forwards.dispatch(ticket)
        except guard.BACKEND_ERRORS as error:
            ticket.error = EvalFailed(str(error))
        except RowError as error:
            ticket.error = error

    def _read_ticket(self, ticket: Ticket) -> DrawReading:
        if ticket.draw is None and ticket.error is None:
            self._draw(ticket)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.draw is not None
        assert ticket.readable is not None
        return self.read(ticket.draw, ticket.readable)

    def _draw_waiting(self, tickets: Iterable[Ticket]) -> None:
        """Draw the steps that waited for the tokens just read (the row pipeline)."""
        for ticket in tickets:
            places = [row.in_flight.index(ticket) for row in ticket.rows if ticket in row.in_flight]
            if ticket.draw is None and ticket.error is None and places and not any(places):
                self._draw(ticket)

    def _draw(self, ticket: Ticket) -> None:
        try:
            self._forwards.draw(ticket)
        except guard.BACKEND_ERRORS as error:
            ticket.error = EvalFailed(str(error))
        except RowError as error:
            ticket.error = error

    def _check_storage(self, error: RowError) -> None:
        """After a backend fault: if the shared arrays cannot be computed, every row is lost."""
        try:
            guard.evaluate(self._storage.arrays())
        except EvalFailed:
            self._table.lose_all(error)


def _takes_another(row: Row) -> bool:
    ahead = row.in_flight
    return len(ahead) < MAX_OUTSTANDING and not any(ticket.waits for ticket in ahead)
