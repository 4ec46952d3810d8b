"""How much KV the rows of an engine take, as the storage really allocates it.

A pool gives every row as many positions as the longest one has, and both its rows and its
positions grow in steps; so the measure of a plan is rows x positions after those steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv.geometry import grown_capacity


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """How a storage grows."""

    row_buckets: tuple[int, ...]
    """Numbers of rows a pool can have, ascending."""
    capacity_step: int
    """Positions it grows by."""
    is_pooled: bool = True
    """Whether rows share arrays; else each takes what it holds."""

    def rows_for(self, open_rows: int) -> int:
        """Rows of the smallest pool that holds ``open_rows``."""
        return next((rows for rows in self.row_buckets if rows >= open_rows), open_rows)

    def positions_for(self, tokens: int) -> int:
        """The most positions a pool has once its longest row holds ``tokens``.

        Long rows grow by an eighth at a time, so the last growth may overshoot by as much.
        """
        before = (tokens - 1) // self.capacity_step * self.capacity_step
        return grown_capacity(before, tokens, self.capacity_step)


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a pool has allocated; all zero when it holds nothing."""

    rows: int = 0
    positions: int = 0


@dataclass(frozen=True, slots=True)
class KvBudget:
    """A bound on the positions of all rows together, and the storage it is about."""

    geometry: KvGeometry
    positions: int | None = None
    """Most token positions that may be allocated; None: no bound."""

    def fits(self, row_tokens: Sequence[int], shape: KvShape, *, shrinks: bool = False) -> bool:
        """Whether rows of ``row_tokens`` tokens each stay inside the budget.

        Args:
            row_tokens: what every open row will hold, new ones included.
            shape: what is allocated now.
            shrinks: whether the pool may drop rows before it grows, as it does between steps.
        """
        if self.positions is None or not row_tokens:
            return True
        return self.allocated(row_tokens, shape, shrinks=shrinks) <= self.positions

    def allocated(self, row_tokens: Sequence[int], shape: KvShape, *, shrinks: bool = False) -> int:
        """Positions allocated once rows hold ``row_tokens`` tokens each."""
        geometry = self.geometry
        if not geometry.is_pooled:
            return sum(map(geometry.positions_for, row_tokens))
        rows = geometry.rows_for(len(row_tokens))
        if not (shrinks and rows * 2 <= shape.rows):
            rows = max(rows, shape.rows)
        return rows * max(shape.positions, geometry.positions_for(max(row_tokens)))

    def longest_row(self, limit: int) -> int:
        """Most tokens, up to ``limit``, that one row alone may hold."""
        if self.positions is None or self.geometry.positions_for(limit) <= self.positions:
            return limit
        low, high = 0, limit
        while high - low > 1:
            middle = (low + high) // 2
            if self.geometry.positions_for(middle) <= self.positions:
                low = middle
            else:
                high = middle
        return low
