"""Decode steps: dispatching one for some rows, and reading it when its turn comes.

``submit`` reads nothing from the device, so that step n+1 is on its way before token n is read.
On a CPU it is built and held: starting a step there takes the thread until the last hundred or so
operations are left (MLX 0.32 lets no more wait), and token n would be told a step late. It is
started by ``flush``, once the caller has told token n, at the latest by the next ``submit``.
What goes wrong while a step is dispatched or drawn is kept in its ticket and told when that is
collected. A row has at most two steps outstanding, and none goes behind a step whose own draw still
waits for the host: there is no token yet that its forward could be fed.
"""

from collections.abc import Iterable

from engine import guard
from engine.commit import fail
from engine.errors import EvalFailed, InvalidParams, RowError
from engine.forwards import Forwards
from engine.ledger import RowTable
from engine.outcome import StepOutcome
from engine.rows import Phase, Row
from engine.sampling.plan import DrawReading
from engine.ticket import Ticket

MAX_OUTSTANDING = 2
"""Steps of a row that are submitted and not collected."""


class Steps:
    """Steps of the rows of a table.

    Args:
        forwards: runs the model.
        table: the rows.
        holds: whether a step behind one that is not read is built only, until ``flush``.
    """

    def __init__(self, forwards: Forwards, table: RowTable, *, holds: bool) -> None:
        self._forwards = forwards
        self._table = table
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
        is_held = self._holds and self._latest is not None
        alive = [row for row in rows if row.lost is None]
        ticket = self._latest = Ticket(self._forwards.layout(alive), is_held=is_held)
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
        # A ticket no row waits for is not read: its failure was told with the step before.
        if ticket.is_awaited:
            try:
                reading = self._read(ticket)
            except RowError as error:
                failure = error
        # Reading may have drawn, and a draw finds faults.
        outcomes = [
            self._table.settle(row, fail(row, error))
            for row, error in ticket.faults.items()
            if ticket in row.in_flight
        ]
        rows = {row: i for row, i in ticket.rows.items() if ticket in row.in_flight}
        if failure is not None:
            return outcomes + self._table.end(rows, failure)
        later = {row.in_flight[1] for row in rows if len(row.in_flight) > 1}
        for row, index in rows.items():
            assert reading is not None
            row.in_flight.remove(ticket)
            outcomes.append(self._table.commit(row, reading, index))
        self._draw_waiting(later)
        return outcomes

    def forget(self) -> None:
        """Let go of the newest step once nobody waits for it: unstarted, it would keep all KV."""
        if self._latest is not None and not self._latest.is_awaited:
            self._latest = None

    def flush(self) -> None:
        """Start the step that is held, if anybody still waits for it."""
        self.forget()
        ticket = self._latest
        if ticket is None or not ticket.is_held:
            return
        try:
            self._forwards.release(ticket)
        except RowError as error:
            ticket.error = error

    def _dispatch(self, ticket: Ticket) -> None:
        try:
            self._forwards.dispatch(ticket)
        except guard.BACKEND_ERRORS as error:
            ticket.error = EvalFailed(str(error))
        except RowError as error:
            ticket.error = error

    def _read(self, ticket: Ticket) -> DrawReading:
        if ticket.draw is None and ticket.error is None:
            self._draw(ticket)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.draw is not None
        assert ticket.readable is not None
        return self._table.read(ticket.draw, ticket.readable)

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


def _takes_another(row: Row) -> bool:
    ahead = row.in_flight
    return len(ahead) < MAX_OUTSTANDING and not any(ticket.waits for ticket in ahead)
