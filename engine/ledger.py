"""The rows of an engine and what reading a draw does to them: commit, cut, or end with an error.

Shared by plain steps, prefill and verify rounds, so that there is one way a token is committed and
one way a failure ends rows.
"""

from collections.abc import Iterable

import mlx.core as mx

from engine import guard
from engine.commit import commit, fail
from engine.errors import EvalFailed, RowError, UnknownSequence
from engine.health import Health
from engine.kv.storage import Storage
from engine.outcome import SeqId, StepOutcome
from engine.rows import Row
from engine.sampling.plan import Draw, DrawReading, read_draw


class RowTable:
    """The open rows.

    Args:
        storage: where their KV lives.
        clear_every: generated tokens between cache clears; 0 is never.
    """

    def __init__(self, storage: Storage, *, clear_every: int) -> None:
        self.rows: dict[SeqId, Row] = {}
        self.health = Health()
        self._storage = storage
        self._clear_every = clear_every

    def row(self, seq: SeqId) -> Row:
        """An open row.

        Raises:
            UnknownSequence: there is none of that handle.
        """
        row = self.rows.get(seq)
        if row is None:
            raise UnknownSequence(f"sequence {seq} is not open")
        return row

    def fit(self) -> None:
        """Let the storage shrink; rows learn their new slots."""
        moved = self._storage.fit()
        if moved is not None:
            slots = {old: new for new, old in enumerate(moved)}
            for row in self.rows.values():
                if row.lost is None:
                    row.slot = slots[row.slot]

    def read(self, drawn: Draw, tokens: mx.array) -> DrawReading:
        """Wait for a draw and read it.

        Args:
            drawn: what was drawn.
            tokens: its tokens, the faulty ones marked (`engine.forwards.readable`).

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
        return self.settle(row, commit(row, token, reading.logprobs[index]))

    def settle(self, row: Row, outcome: StepOutcome) -> StepOutcome:
        """Cut what a finished row has in flight; a failed cut beats any finish, not an error."""
        if not outcome.is_final:
            if self._clear_every and row.written % self._clear_every == 0:
                mx.clear_cache()
            return outcome
        ahead = sum(ticket.appended for ticket in row.in_flight)
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

    def _check_storage(self, error: RowError) -> None:
        """After a backend fault: if the shared arrays cannot be computed, every row is lost."""
        try:
            guard.evaluate(self._storage.arrays())
        except EvalFailed:
            for row in self.rows.values():
                row.lost = error
                row.failed = True
            self._storage.reset()
