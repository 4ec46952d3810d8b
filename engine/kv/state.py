"""Recurrent state of one layer (SSM, convolution, linear attention): one array row per pool row.

State arrays are replaced by a step, never mutated, so a reference to what they were before it is
an exact way back: up to two appends can be undone, which is what a one-step lookahead needs.
Inactive rows of a forward get their old state back.
"""

import mlx.core as mx

from engine.errors import RewindFailed, UnsupportedModel
from engine.kv.forward_shape import ForwardShape
from engine.kv.layer import WHOLE_ROW, RowArrays, widened
from engine.models.mlxlm import import_mlx_lm

# Families test their caches for this very class, so ours must be one.
import_mlx_lm()
from mlx_lm.models.cache import ArraysCache  # noqa: E402

REWIND_TOKENS = 2
"""Appends that can be undone: the one not yet committed and the one in flight behind it."""

_Arrays = list[mx.array | None]


class StateLayer(ArraysCache):  # type: ignore[misc]  # mlx-lm carries no types
    """What a recurrent layer takes for its cache: a list of state arrays, ``[B, ...]`` each.

    Args:
        size: state arrays of the layer.
    """

    cuts_inside = False
    """A forward of several tokens leaves only the state after the last."""

    pads = False
    """So padding would be part of it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._pool: _Arrays = [None] * size
        self._held: set[int] = set()
        """Rows that have state; the others start from the family's own zeros."""
        self._before: dict[int, list[_Arrays | None]] = {}
        """Per row, the pool as it was before each of its newest appends; None: it had no state."""
        self._forward: ForwardShape | None = None
        self._pool_rows = 0

    def begin(self, forward: ForwardShape, pool_rows: int) -> None:
        """Take part in ``forward``: the list the family indexes holds this forward's rows."""
        self._forward = forward
        self._pool_rows = pool_rows
        if forward.slot is None:
            self._begin_rows(forward)
            self.cache = list(self._pool)
        elif forward.slot in self._held:
            self.cache = [None if a is None else a[forward.rows] for a in self._pool]
        else:
            self.cache = [None] * len(self._pool)

    def end(self) -> None:
        """Leave the forward: the new state goes into the pool, inactive rows keep their old one."""
        forward, new = self._forward, self.cache
        assert forward is not None
        self.cache = [None] * len(self._pool)
        self._forward = None
        if forward.slot is not None:
            is_first = forward.width == 1 and forward.slot not in self._held
            self._before[forward.slot] = [None] if is_first else []
            self._put(forward.slot, new)
            self._held.add(forward.slot)
            return
        old = self._pool
        if not all(forward.takes_part):
            new = [_chosen(forward.takes_part, a, b) for a, b in zip(new, old, strict=True)]
        self._pool = list(new)
        for slot, part in enumerate(forward.takes_part):
            if part:
                kept = self._before.get(slot, [])[1 - REWIND_TOKENS :]
                self._before[slot] = [*kept, old if slot in self._held else None]
                self._held.add(slot)

    def abandon(self) -> None:
        """Leave a forward that raised; the pool still holds the old state."""
        self.cache = [None] * len(self._pool)
        self._forward = None

    def drop(self) -> None:
        """Let go of every array."""
        self.abandon()
        self._pool = [None] * len(self._pool)
        self._held.clear()
        self._before.clear()

    def begins_alone(self, slot: int) -> bool:
        """Whether it has no state: mlx-lm's recurrent_gemma scales a first token otherwise."""
        return slot not in self._held

    def rewind_limit(self, slot: int, overshoot: int) -> int | None:
        """One-token appends whose state before is still at hand."""
        del overshoot
        return len(self._before.get(slot, ()))

    def rewind(self, slot: int, tokens: int) -> None:
        """Put back what the row was ``tokens`` appends ago; at most `REWIND_TOKENS`."""
        kept = self._before.get(slot, [])
        if tokens == 0:
            return
        if tokens > len(kept):
            raise RewindFailed(
                f"recurrent state can go back {len(kept)} tokens, {tokens} were asked"
            )
        old = kept[-tokens]
        if old is None:
            self._held.discard(slot)
        else:
            self._put(slot, [None if a is None else a[slot : slot + 1] for a in old])
        self._before[slot] = kept[:-tokens]

    def arrays(self) -> list[mx.array]:
        """The pool arrays, for evaluation and accounting."""
        return [a for a in self._pool if a is not None]

    def move(self, rows: list[int] | None, pool_rows: int) -> None:
        """Rebuild the pool with ``pool_rows`` rows, keeping the old ``rows`` in that order."""
        self._pool_rows = pool_rows
        self._pool = _widened(self._pool, rows, pool_rows)
        if rows is not None:
            self._held = {new for new, old in enumerate(rows) if old in self._held}
            self._before = {
                new: self._before[old] for new, old in enumerate(rows) if old in self._before
            }
        self._before = {
            slot: [old if old is None else _widened(old, rows, pool_rows) for old in kept]
            for slot, kept in self._before.items()
        }

    def clear(self, slot: int, tokens: slice = WHOLE_ROW) -> None:
        """Forget one row, all of it."""
        if tokens != WHOLE_ROW:
            return
        self._held.discard(slot)
        self._before.pop(slot, None)

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowArrays:
        """Copies of one row's state arrays, as they were ``back`` appends ago."""
        del tokens, start
        if slot not in self._held:
            return ()
        state = self._before[slot][-back] if back else self._pool
        if state is None:
            return ()
        return tuple(mx.contiguous(a[slot : slot + 1]) for a in state if a is not None)

    def load(self, slot: int, arrays: RowArrays, pool_rows: int, capacity: int) -> None:
        """Put what `save` gave into a row."""
        del capacity
        self._pool_rows = pool_rows
        self.clear(slot)
        if arrays:
            self._put(slot, list(arrays))
            self._held.add(slot)

    def _begin_rows(self, forward: ForwardShape) -> None:
        """Let rows whose first forward this is start from zeros, not from what their slot had."""
        begin = tuple(
            part and slot not in self._held for slot, part in enumerate(forward.takes_part)
        )
        if any(begin):
            self._pool = [
                None if a is None else _chosen(begin, mx.zeros_like(a), a) for a in self._pool
            ]

    def _put(self, slot: int, row: _Arrays) -> None:
        for i, new in enumerate(row):
            if new is None:
                continue
            pool = self._pool[i]
            if pool is None:
                pool = mx.zeros((self._pool_rows, *new.shape[1:]), new.dtype)
            elif pool.shape[1:] != new.shape[1:]:
                raise UnsupportedModel("a recurrent layer changed the shape of its state")
            # A copy under a new name: the old array may be the way back of another row.
            self._pool[i] = mx.slice_update(pool, new, mx.array([slot]), axes=[0])


def _widened(arrays: _Arrays, rows: list[int] | None, pool_rows: int) -> _Arrays:
    return [None if a is None else widened(a, rows, pool_rows) for a in arrays]


def _chosen(
    takes_part: tuple[bool, ...], new: mx.array | None, old: mx.array | None
) -> mx.array | None:
    if new is None or old is None:
        return new
    shape = (len(takes_part), *(1,) * (new.ndim - 1))
    return mx.where(mx.array(takes_part).reshape(shape), new, old)
