"""What the pool asks of a layer's cache, and the array moves layers share.

A layer object stands where mlx-lm's families expect a cache: they call ``offset``,
``update_and_fetch``, ``make_mask`` (attention) or index it (recurrent state). The pool calls the
methods below.
"""

from typing import Protocol

import mlx.core as mx

from engine.kv.forward_shape import ForwardShape

WHOLE_ROW = slice(None)

RowArrays = tuple[mx.array, ...]
"""One row's saved arrays of one layer."""


class PoolLayer(Protocol):
    """One layer's share of a pool."""

    def begin(self, forward: ForwardShape, pool_rows: int) -> None:
        """Take part in ``forward``; storage grows here if it must."""

    def end(self) -> None:
        """Leave the forward; recurrent state goes back to its pool."""

    def abandon(self) -> None:
        """Leave a forward that raised; what it appended is past the rows' lengths."""

    def drop(self) -> None:
        """Let go of every array."""

    def begins_alone(self, slot: int) -> bool:
        """Whether the row's first token needs a forward of its own."""

    def rewind_limit(self, slot: int, overshoot: int) -> int | None:
        """Tokens a row can be cut back by now; None, for every row alike: any number.

        Args:
            slot: the row.
            overshoot: tokens it once held more than now, whose appends overwrote older ones.
        """

    @property
    def cuts_inside(self) -> bool:
        """Whether a row can be cut back to within a forward of several tokens."""

    @property
    def pads(self) -> bool:
        """Whether ragged rows can append several tokens in one forward, the shorter ones padded."""

    def rewind(self, slot: int, tokens: int) -> None:
        """Cut a row back by ``tokens``, within the limit.

        Raises:
            RewindFailed: the layer no longer holds what the row was.
        """

    def arrays(self) -> list[mx.array]:
        """The pool arrays, for evaluation and accounting."""

    def move(self, rows: list[int] | None, pool_rows: int) -> None:
        """Rebuild the pool with ``pool_rows`` rows, keeping the old ``rows`` in that order."""

    def clear(self, slot: int, tokens: slice = WHOLE_ROW) -> None:
        """Zero one row, or the positions ``tokens`` of it; recurrent state has none."""

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowArrays:
        """One row's state after its first ``tokens`` tokens, as arrays of its own.

        Args:
            slot: the row.
            tokens: how many it is of.
            back: appends that it is behind the row's newest state.
            start: tokens to leave out at the beginning, where positions stand by themselves.
        """

    def load(self, slot: int, arrays: RowArrays, pool_rows: int, capacity: int) -> None:
        """Put what `save` gave into a row."""


class AttentionLayer:
    """What full-length and ring layers share: keys and values of every row in one pool array each.

    Args:
        window: newest positions each token sees, its own included; None: all of them.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset: int | mx.array = 0
        self._asked_wider = False
        self._forward: ForwardShape | None = None
        self._pool_rows = 0

    def begin(self, forward: ForwardShape, pool_rows: int) -> None:
        """Take part in ``forward``."""
        self._forward = forward
        self._pool_rows = pool_rows
        self.offset = forward.offset

    def end(self) -> None:
        """Leave the forward."""

    def abandon(self) -> None:
        """Leave a forward that raised."""
        self.end()

    def drop(self) -> None:
        """Let go of every array."""
        self.end()
        self.keys = self.values = None

    def begins_alone(self, slot: int) -> bool:
        """No keys and masked keys are the same."""
        del slot
        return False

    @property
    def cuts_inside(self) -> bool:
        """Every position stands by itself, unless a chunk sees more than single steps do."""
        return not self._asked_wider

    @property
    def pads(self) -> bool:
        """Padding lies where what is cut off does."""
        return self.cuts_inside

    def rewind(self, slot: int, tokens: int) -> None:
        """Nothing moves: the pool's length is what counts."""

    def arrays(self) -> list[mx.array]:
        """The pool arrays, for evaluation and accounting."""
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    def move(self, rows: list[int] | None, pool_rows: int) -> None:
        """Rebuild the pool with ``pool_rows`` rows, keeping the old ``rows`` in that order."""
        self._pool_rows = pool_rows
        if self.keys is not None and self.values is not None:
            self.keys = widened(self.keys, rows, pool_rows)
            self.values = widened(self.values, rows, pool_rows)

    def _live(self) -> ForwardShape:
        assert self._forward is not None, "a layer is read only inside a forward"
        return self._forward


def grown(array: mx.array, capacity: int) -> mx.array:
    """``array`` with at least ``capacity`` token positions on axis 2."""
    missing = capacity - array.shape[2]
    if missing <= 0:
        return array
    shape = (*array.shape[:2], missing, *array.shape[3:])
    return mx.concatenate([array, mx.zeros(shape, array.dtype)], axis=2)


def widened(array: mx.array, rows: list[int] | None, pool_rows: int) -> mx.array:
    """The old ``rows`` of ``array`` (None: all) in that order, then zero rows on axis 0."""
    kept = array if rows is None else array[mx.array(rows, mx.int32)]
    missing = pool_rows - kept.shape[0]
    if missing <= 0:
        return kept
    return mx.concatenate([kept, mx.zeros((missing, *kept.shape[1:]), kept.dtype)], axis=0)
