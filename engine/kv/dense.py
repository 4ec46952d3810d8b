"""Full-length KV of one attention layer: right-padded rows in one pool array.

A step writes every row at its own offset; trimming is a smaller length held by the pool, no data
moves. Rows of equal length are read by an exact slice without a mask, so that one row is bitwise
what mlx-lm's own ``KVCache`` gives; only ragged rows pay for a mask.
"""

import mlx.core as mx

from engine.kv.forward_shape import ForwardShape
from engine.kv.layer import WHOLE_ROW, AttentionLayer, RowArrays, grown


class DenseLayer(AttentionLayer):
    """What a model's attention layer takes for its KV cache.

    Args:
        window: newest positions each token sees, its own included; None: all of them. A window
            layer keeps the full length while the context is short, so that it can be trimmed.
        grouped: whether the family masks scores that have an axis more, for the queries a key.
    """

    def __init__(self, window: int | None = None, *, grouped: bool = False) -> None:
        super().__init__(window)
        self._grouped = grouped

    def begin(self, forward: ForwardShape, pool_rows: int) -> None:
        """Take part in ``forward``; the arrays grow here if they must."""
        super().begin(forward, pool_rows)
        if self.keys is not None and self.keys.shape[2] < forward.capacity:
            assert self.values is not None
            self.keys = grown(self.keys, forward.capacity)
            self.values = grown(self.values, forward.capacity)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append ``[B, H, L, D]`` and return what attention reads, ``[B, H, K, D]``."""
        forward = self._live()
        if self.keys is None or self.values is None:
            self.keys = self._room(forward, keys)
            self.values = self._room(forward, values)
        if forward.start is not None:
            end = forward.start + forward.width
            self.keys[forward.rows, :, forward.start : end] = keys
            self.values[forward.rows, :, forward.start : end] = values
        else:
            self.keys = mx.put_along_axis(self.keys, forward.positions, keys, axis=2)
            self.values = mx.put_along_axis(self.values, forward.positions, values, axis=2)
        self.offset = forward.next_offset
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What attention reads; layers that share KV ask for it without an update."""
        forward = self._live()
        assert self.keys is not None
        assert self.values is not None
        span = slice(self._first(forward), forward.read_end)
        return self.keys[forward.rows, :, span], self.values[forward.rows, :, span]

    def make_mask(
        self,
        N: int,  # noqa: N803 - mlx-lm's families call it by this name
        return_array: bool = False,  # noqa: FBT001, FBT002
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """The mask mlx-lm's families ask a cache for; None where an exact slice needs none."""
        forward = self._live()
        window = self.window if window_size is None else window_size
        if window is not None and self.window is not None and window > self.window:
            # mlx-lm's plamo3: one more than its cache keeps, so only a chunk's later tokens see it.
            self._asked_wider = True
            window = self.window if N == 1 else window
        if forward.start is None:
            mask = forward.causal_mask(self._first(forward), window)
            return mask[:, :, None] if self._grouped else mask
        if window is not None and forward.start + N <= window:
            window = None
        if N == 1 and (window is None or window == self.window):
            return None
        if window is None and not return_array:
            return "causal"
        return forward.causal_mask(self._first(forward), window)

    def rewind_limit(self, slot: int, overshoot: int) -> int | None:
        """A full-length row can be cut back to any length."""
        del slot, overshoot
        return None

    def clear(self, slot: int, tokens: slice = WHOLE_ROW) -> None:
        """Zero ``tokens`` of one row: a masked NaN times weight zero is still NaN."""
        if self.keys is not None and self.values is not None:
            self.keys[slot, :, tokens] = mx.array(0, self.keys.dtype)
            self.values[slot, :, tokens] = mx.array(0, self.values.dtype)

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowArrays:
        """Copies of one row's positions [start, tokens), ``[1, H, tokens - start, D]`` each."""
        del back
        if self.keys is None or self.values is None:
            return ()
        return (
            mx.contiguous(self.keys[slot : slot + 1, :, start:tokens]),
            mx.contiguous(self.values[slot : slot + 1, :, start:tokens]),
        )

    def load(self, slot: int, arrays: RowArrays, pool_rows: int, capacity: int) -> None:
        """Put what `save` gave into a row."""
        if not arrays:
            return
        keys, values = arrays
        tokens = keys.shape[2]
        if self.keys is None or self.values is None:
            self.keys = mx.zeros((pool_rows, keys.shape[1], capacity, keys.shape[3]), keys.dtype)
            self.values = mx.zeros(
                (pool_rows, values.shape[1], capacity, values.shape[3]), values.dtype
            )
        self.keys = grown(self.keys, capacity)
        self.values = grown(self.values, capacity)
        self.keys[slot : slot + 1, :, :tokens] = keys
        self.values[slot : slot + 1, :, :tokens] = values

    def _room(self, forward: ForwardShape, new: mx.array) -> mx.array:
        return mx.zeros((self._pool_rows, new.shape[1], forward.capacity, new.shape[3]), new.dtype)

    def _first(self, forward: ForwardShape) -> int:
        """Position of the first key handed over: a window layer skips what no token sees."""
        if self.window is None or forward.start is None:
            return 0
        return max(0, forward.start + 1 - self.window)
