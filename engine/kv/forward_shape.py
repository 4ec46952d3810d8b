"""The geometry of one forward: which pool rows it reads, where each appends, what each may see.

All layers of a forward share one `ForwardShape`, so its arrays (offsets, write positions, masks)
are built once per step. They are made fresh for every forward and never mutated: families read
``offset`` before and after the update (mlx-lm#1097), and metadata arrays that live across steps
grow a lazy graph forever (mlx-lm#1641).
"""

from functools import cached_property

import mlx.core as mx

READ_BUCKET_TOKENS = 64
"""A ragged forward reads a slice rounded up to this, so that its shapes change rarely."""


class ForwardShape:
    """One forward over a pool: of one row (a view) or of every row, equally wide.

    Args:
        slot: the row of a one-row forward; None: all rows of the pool take part in the graph.
        offsets: tokens each row of the forward holds already; one entry for a view.
        width: tokens each row is fed; some append fewer, the rest is padding.
        capacity: token positions the pool has.
        takes_part: per row, whether it appends; the others are inactive, and what they write
            lies past their length, where the next append overwrites it. So does padding.
    """

    def __init__(
        self,
        *,
        slot: int | None,
        offsets: tuple[int, ...],
        width: int,
        capacity: int,
        takes_part: tuple[bool, ...],
    ) -> None:
        self.slot = slot
        self.offsets = offsets
        self.width = width
        self.capacity = capacity
        self.takes_part = takes_part
        self.start = offsets[0] if len(set(offsets)) == 1 else None
        """The common offset of all rows; None when they differ (a ragged forward)."""
        self._masks: dict[tuple[int, int | None], mx.array] = {}

    @property
    def rows(self) -> slice:
        """The pool rows of this forward."""
        return slice(None) if self.slot is None else slice(self.slot, self.slot + 1)

    @property
    def batch(self) -> int:
        """Rows of the forward."""
        return len(self.offsets)

    @cached_property
    def offset(self) -> int | mx.array:
        """What a layer reports before its update: an int, or int32[B] when ragged."""
        return mx.array(self.offsets, mx.int32) if self.start is None else self.start

    @cached_property
    def next_offset(self) -> int | mx.array:
        """What a layer reports after its update."""
        if self.start is not None:
            return self.start + self.width
        return mx.array([offset + self.width for offset in self.offsets], mx.int32)

    @cached_property
    def positions(self) -> mx.array:
        """int32[B, 1, L, 1]: the position of every appended token."""
        return self._column(self.offsets)

    def ring_positions(self, ring: int) -> mx.array:
        """int32[B, 1, L, 1]: `positions` folded into a ring of ``ring`` entries."""
        return self.positions % ring

    @cached_property
    def read_end(self) -> int:
        """Token positions a full-length layer hands to attention.

        Inactive rows do not count: a long one would make every step of the others as long.
        """
        if self.start is not None:
            return self.start + self.width
        taking = [at for at, takes in zip(self.offsets, self.takes_part, strict=True) if takes]
        end = max(taking or self.offsets) + self.width
        return min(self.capacity, -(-end // READ_BUCKET_TOKENS) * READ_BUCKET_TOKENS)

    def causal_mask(self, first: int, window: int | None) -> mx.array:
        """bool[L, K] or bool[B, 1, L, K]: which of the positions ``first``.. each token sees.

        Args:
            first: position of the first key that the layer hands over.
            window: newest positions a token sees, its own included; None: all.
        """
        key = (first, window)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = self._causal_mask(first, window)
        return mask

    def ring_mask(self, ring: int, window: int) -> mx.array:
        """bool[B, 1, L, ring]: the entries of a whole ring that each token sees.

        Entries that the forward has just written are none of an older token's window as long as
        the ring is wider than that by L - 1.
        """
        key = (-ring, window)
        mask = self._masks.get(key)
        if mask is None:
            newest = self.positions
            age = (newest - mx.arange(ring, dtype=mx.int32)) % ring
            mask = self._masks[key] = (age < window) & (age <= newest)
        return mask

    def _causal_mask(self, first: int, window: int | None) -> mx.array:
        if self.start is not None:
            queries = mx.arange(self.start, self.start + self.width)[:, None]
        else:
            queries = self.positions
        keys = mx.arange(first, self.read_end)
        mask = queries >= keys
        return mask if window is None else mask & (queries < keys + window)

    def _column(self, offsets: tuple[int, ...]) -> mx.array:
        columns = [[offset + i for i in range(self.width)] for offset in offsets]
        return mx.array(columns, mx.int32)[:, None, :, None]
