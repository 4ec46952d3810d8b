"""Window-bounded KV of one attention layer: each row a ring of its newest positions.

Where mlx-lm's ``RotatingKVCache`` cannot be trimmed once it has wrapped, the ring keeps ``slack``
positions more than the window shows, so a row can be cut back by up to that many tokens exactly:
an append at position p overwrites only position p - ring, which no token after p - slack sees.
"""

import mlx.core as mx

from engine.kv.forward_shape import ForwardShape
from engine.kv.layer import WHOLE_ROW, AttentionLayer, RowArrays

SLACK_TOKENS = 66
"""The longest verify round (64 drafted + 1) and one append in flight."""


class RingLayer(AttentionLayer):
    """What a sliding-window attention layer takes for its KV cache.

    Args:
        window: newest positions each token sees, its own included.
    """

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.window: int = window
        self.ring = -(-(window + SLACK_TOKENS) // 64) * 64
        self._handed: tuple[mx.array, mx.array] | None = None

    def begin(self, forward: ForwardShape, pool_rows: int) -> None:
        """Take part in ``forward``."""
        # More would overwrite what the rows still see, inactive ones too.
        assert forward.slot is not None or forward.width <= self.ring - self.window + 1
        super().begin(forward, pool_rows)

    def end(self) -> None:
        """Leave the forward, dropping what attention was handed: it keeps a buffer in use."""
        self._handed = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append ``[B, H, L, D]`` and return what attention reads."""
        forward = self._live()
        if self.keys is None or self.values is None:
            self.keys = self._room(keys)
            self.values = self._room(values)
        if forward.width == 1 or forward.start is None:
            self.keys = self._written(forward, self.keys, keys)
            self.values = self._written(forward, self.values, values)
            handed = self.keys[forward.rows], self.values[forward.rows]
        else:
            handed = (
                self._behind(forward, self.keys, keys),
                self._behind(forward, self.values, values),
            )
            self._store(forward, self.keys, keys)
            self._store(forward, self.values, values)
        self.offset = forward.next_offset
        self._handed = handed
        return handed

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What attention reads; layers that share KV ask for it without an update."""
        assert self._handed is not None
        return self._handed

    def make_mask(
        self,
        N: int,  # noqa: N803 - mlx-lm's families call it by this name
        return_array: bool = False,  # noqa: FBT001, FBT002
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """The mask mlx-lm's families ask a cache for."""
        forward = self._live()
        window = window_size or self.window
        self._asked_wider |= window > self.window  # see `DenseLayer.make_mask`
        if N == 1 or forward.start is None:
            return forward.ring_mask(self.ring, min(window, self.window))
        if forward.start + N <= window and not return_array:
            return "causal"
        return forward.causal_mask(self._first(forward), window)

    def rewind_limit(self, slot: int, overshoot: int) -> int | None:
        """What the slack leaves behind the longest the row has been."""
        del slot
        return max(0, self.ring - self.window - overshoot)

    def clear(self, slot: int, tokens: slice = WHOLE_ROW) -> None:
        """Zero ``tokens`` of one row: a masked NaN times weight zero is still NaN."""
        if self.keys is None or self.values is None:
            return
        spans = [(0, self.ring)]
        if tokens != WHOLE_ROW:
            spans = self._spans(tokens.start, min(tokens.stop, tokens.start + self.ring))
        for begin, end in spans:
            self.keys[slot, :, begin:end] = mx.array(0, self.keys.dtype)
            self.values[slot, :, begin:end] = mx.array(0, self.values.dtype)

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowArrays:
        """Copies of one row's ring, ``[1, H, ring, D]`` each; the slack is the way back."""
        del tokens, back, start
        if self.keys is None or self.values is None:
            return ()
        return mx.contiguous(self.keys[slot : slot + 1]), mx.contiguous(
            self.values[slot : slot + 1]
        )

    def load(self, slot: int, arrays: RowArrays, pool_rows: int, capacity: int) -> None:
        """Put what `save` gave into a row."""
        del capacity
        if not arrays:
            return
        self._pool_rows = pool_rows
        keys, values = arrays
        if self.keys is None or self.values is None:
            self.keys, self.values = self._room(keys), self._room(values)
        self.keys[slot : slot + 1] = keys
        self.values[slot : slot + 1] = values

    def _room(self, new: mx.array) -> mx.array:
        return mx.zeros((self._pool_rows, new.shape[1], self.ring, new.shape[3]), new.dtype)

    def _written(self, forward: ForwardShape, pool: mx.array, new: mx.array) -> mx.array:
        if forward.start is None:
            return mx.put_along_axis(pool, forward.ring_positions(self.ring), new, axis=2)
        at = forward.start % self.ring
        pool[forward.rows, :, at : at + 1] = new
        return pool

    def _first(self, forward: ForwardShape) -> int:
        assert forward.start is not None
        return max(0, forward.start + 1 - self.window)

    def _behind(self, forward: ForwardShape, pool: mx.array, new: mx.array) -> mx.array:
        """The positions the appended tokens see, oldest first: those in the ring, then ``new``."""
        assert forward.start is not None
        parts = [
            pool[forward.rows, :, a:b] for a, b in self._spans(self._first(forward), forward.start)
        ]
        return mx.concatenate([*parts, new], axis=2) if parts else new

    def _store(self, forward: ForwardShape, pool: mx.array, new: mx.array) -> None:
        assert forward.start is not None
        end = forward.start + forward.width
        begin = max(forward.start, end - self.ring)
        taken = begin - forward.start
        for a, b in self._spans(begin, end):
            pool[forward.rows, :, a:b] = new[:, :, taken : taken + b - a]
            taken += b - a

    def _spans(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Ring entries of positions [begin, end), in position order; at most two runs."""
        if begin >= end:
            return []
        first, count = begin % self.ring, end - begin
        head = min(count, self.ring - first)
        spans = [(first, first + head)]
        return spans if head == count else [*spans, (0, count - head)]
