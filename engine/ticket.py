"""A dispatched step that has not been read: what ``submit`` gives and ``collect`` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from engine.errors import RowError

if TYPE_CHECKING:
    from engine.rows import Row
    from engine.sampling.plan import Draw


class Ticket:
    """One step of some rows, on its way.

    Attributes:
        rows: the sequences of the step, each with its entry in the arrays.
        newest: int32[W], the token each row fed.
        logits: float[W, V], kept only while the draw has to wait for the host.
        draw: the tokens drawn, lazy; None while it waits.
        readable: int32[W], the drawn tokens, -1 where a row's logits were not finite.
        appended: whether the forward was built, so that each row has one more append.
        is_held: whether what is built waits to be started.
        held: what is to be started.
        error: why the whole step failed.
        faults: why single rows failed before they could be read.
    """

    __slots__ = (
        "appended", "draw", "error", "faults", "held", "is_held", "logits", "newest", "readable",
        "rows",
    )  # fmt: skip

    def __init__(self, rows: dict[Row, int], *, is_held: bool = False) -> None:
        self.rows = rows
        self.is_held = is_held
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
