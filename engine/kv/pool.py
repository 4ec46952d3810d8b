"""The pool: fixed row slots over per-layer arrays, lengths on the host.

A row keeps its slot while it lives, so admission and finish inside a row bucket copy nobody's KV.
Free slots and rows that are not in a step are inactive: masked. Capacity grows by 256 tokens, the
number of rows through `ROW_BUCKETS`; only those growths copy.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import mlx.core as mx

from engine.errors import InvalidParams, RewindFailed
from engine.kv.forward_shape import ForwardShape
from engine.kv.geometry import grown_capacity
from engine.kv.layer import PoolLayer
from engine.kv.storage import RowSnapshot

ROW_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of a pool. Idle rows cost a little of every forward on a CPU, so the steps are small."""

CAPACITY_STEP = 256
"""Token positions a pool grows by, as mlx-lm's caches do."""


class Pool:
    """Storage of families whose layers all fit the pool's layer kinds.

    Args:
        layers: one per cache the model asks for.
        caches: what the model is handed; the layers, or lists of them.
    """

    batches = True

    def __init__(self, layers: Sequence[PoolLayer], caches: Sequence[object]) -> None:
        self._layers = tuple(layers)
        self._caches = list(caches)
        self._lengths: list[int] = [0]
        self._longest: list[int] = [0]
        """The longest each row has been: what a ring may have overwritten."""
        self._open: set[int] = set()
        self._capacity = 0

    @property
    def pads(self) -> bool:
        """Whether one forward can append several tokens to several rows (`padded`)."""
        return all(layer.pads for layer in self._layers)

    @property
    def rows(self) -> int:
        """Rows of a batched forward."""
        return len(self._lengths)

    @property
    def capacity(self) -> int:
        """Token positions of every row."""
        return self._capacity

    def open(self, expected_tokens: int) -> int:
        """Take the lowest free slot, growing the pool by a bucket when there is none.

        Raises:
            InvalidParams: the widest bucket is full.
        """
        free = [slot for slot in range(self.rows) if slot not in self._open]
        if not free:
            free = [self.rows]
            wider = next((rows for rows in ROW_BUCKETS if rows > self.rows), None)
            if wider is None:
                raise InvalidParams("rows", f"one engine holds at most {self.rows} open rows")
            self._resize(wider, None)
        slot = free[0]
        self._lengths[slot] = self._longest[slot] = 0
        self._open.add(slot)
        if len(self._open) == 1:
            self._reserve(expected_tokens)
        return slot

    def close(self, slot: int, *, failed: bool) -> None:
        """Give a slot back; zero a failed row's storage, and what any row was cut back by (K4)."""
        cut = slice(self._lengths[slot], self._longest[slot])
        self._open.discard(slot)
        self._lengths[slot] = self._longest[slot] = 0
        if not self._open:
            self.reset()
            return
        if not cut.stop:
            return  # No forward wrote to it.
        for layer in self._layers:
            if failed or layer.rewind_limit(slot, 0) is not None:
                layer.clear(slot)
            elif cut.start < cut.stop:
                layer.clear(slot, cut)

    def fit(self) -> list[int] | None:
        """Shrink to the bucket the open rows need, if it is at most half the rows.

        Returns:
            The old slot of each new one, or None when nothing moved. No row may have a
            forward in flight that the caller still addresses by its old slot.
        """
        wanted = next(rows for rows in ROW_BUCKETS if rows >= max(1, len(self._open)))
        if wanted * 2 > self.rows:
            return None
        kept = sorted(self._open)
        kept += [slot for slot in range(self.rows) if slot not in self._open][: wanted - len(kept)]
        self._resize(wanted, kept)
        return kept

    def begins_alone(self, slot: int) -> bool:
        """Whether a layer keeps state and has none of this row."""
        return any(layer.begins_alone(slot) for layer in self._layers)

    def length(self, slot: int) -> int:
        """Tokens appended to a row, committed or not."""
        return self._lengths[slot]

    def rewind_limit(self, slot: int) -> int | None:
        """Tokens the row can be cut back by now; None: any number it holds."""
        overshoot = self._longest[slot] - self._lengths[slot]
        limits = [layer.rewind_limit(slot, overshoot) for layer in self._layers]
        return min((limit for limit in limits if limit is not None), default=None)

    def draft_limit(self, slot: int) -> int | None:
        """Tokens of one forward that can be cut off again; None: any number."""
        if not all(layer.cuts_inside for layer in self._layers):
            return 0
        return self.rewind_limit(slot)

    def wipe(self, slot: int) -> None:
        """Zero what a row was cut back by, which masked reads still multiply by zero."""
        for layer in self._layers:
            layer.clear(slot, slice(self._lengths[slot], self._longest[slot]))

    def rewind(self, slot: int, tokens: int) -> None:
        """Cut a row back by ``tokens``."""
        limit = self.rewind_limit(slot)
        if tokens > self._lengths[slot] or (limit is not None and tokens > limit):
            raise RewindFailed(
                f"a row of {self._lengths[slot]} tokens cannot be cut back by {tokens}"
                + ("" if limit is None else f" (its layers keep {limit})")
            )
        for layer in self._layers:
            layer.rewind(slot, tokens)
        self._lengths[slot] -= tokens

    @contextmanager
    def one(self, slot: int, width: int) -> Iterator[Sequence[object]]:
        """The caches of a one-row forward of ``width`` tokens."""
        offset = self._lengths[slot]
        self._reserve(offset + width)
        self._longest[slot] = max(self._longest[slot], offset + width)
        yield from self._run(
            ForwardShape(
                slot=slot,
                offsets=(offset,),
                width=width,
                capacity=self._capacity,
                takes_part=(True,),
            )
        )
        self._lengths[slot] += width

    @contextmanager
    def all(self, slots: Sequence[int]) -> Iterator[Sequence[object]]:
        """The caches of a forward of one token for each of ``slots``; other rows are inactive."""
        yield from self._shared(dict.fromkeys(slots, 1))

    @contextmanager
    def padded(self, widths: Mapping[int, int]) -> Iterator[Sequence[object]]:
        """The caches of a forward as wide as the widest of ``widths``; other rows are inactive."""
        assert self.pads
        yield from self._shared(widths)

    def padding_fits(self, widths: Mapping[int, int], most: int) -> bool:
        """Whether `padded` stays below ``most`` and allocates nothing for the padding's sake."""
        end = max(self._lengths) + max(widths.values())
        needed = max(self._lengths[slot] + tokens for slot, tokens in widths.items())
        return end <= most and self._capacity_for(end) == self._capacity_for(needed)

    def arrays(self) -> list[mx.array]:
        """Every array of the pool."""
        return [array for layer in self._layers for array in layer.arrays()]

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowSnapshot:
        """Copies of a row's first ``tokens`` tokens; of all it holds where it cannot be cut."""
        limit = self.rewind_limit(slot)
        start = start if limit is None else 0
        kept = tokens if limit is None else self._lengths[slot] - back
        assert kept <= self._lengths[slot]
        assert limit is None or back <= limit, "the row has no way back that far"
        layers = tuple(layer.save(slot, kept, back, start) for layer in self._layers)
        overshoot = self._longest[slot] - kept
        return RowSnapshot(kept - start, layers, overshoot, is_whole=limit is not None)

    def load(self, slot: int, snapshot: RowSnapshot) -> None:
        """Fill an empty row from a snapshot."""
        self._reserve(snapshot.tokens)
        self._longest[slot] = snapshot.tokens + snapshot.overshoot
        for layer, arrays in zip(self._layers, snapshot.layers, strict=True):
            layer.load(slot, arrays, self.rows, self._capacity)
        self._lengths[slot] = snapshot.tokens

    def reset(self) -> None:
        """Drop every row and array; also what an idle pool does, so that it holds no memory."""
        self._open.clear()
        self._lengths, self._longest, self._capacity = [0], [0], 0
        for layer in self._layers:
            layer.drop()

    def _shared(self, widths: Mapping[int, int]) -> Iterator[Sequence[object]]:
        width = max(widths.values())
        self._reserve(max(self._lengths) + width)
        # Every row, inactive or not, is written to behind its length: a ring loses as many entries.
        self._longest = [
            max(longest, length + width)
            for longest, length in zip(self._longest, self._lengths, strict=True)
        ]
        yield from self._run(
            ForwardShape(
                slot=None,
                offsets=tuple(self._lengths),
                width=width,
                capacity=self._capacity,
                takes_part=tuple(slot in widths for slot in range(self.rows)),
            )
        )
        for slot, tokens in widths.items():
            self._lengths[slot] += tokens

    def _run(self, forward: ForwardShape) -> Iterator[Sequence[object]]:
        for layer in self._layers:
            layer.begin(forward, self.rows)
        try:
            yield self._caches
        except BaseException:
            for layer in self._layers:
                layer.abandon()
            raise
        for layer in self._layers:
            layer.end()

    def _reserve(self, tokens: int) -> None:
        self._capacity = self._capacity_for(tokens)

    def _capacity_for(self, tokens: int) -> int:
        return grown_capacity(self._capacity, tokens, CAPACITY_STEP)

    def _resize(self, rows: int, kept: list[int] | None) -> None:
        for layer in self._layers:
            layer.move(kept, rows)
        order = list(range(self.rows)) if kept is None else kept
        pad = [0] * (rows - len(order))
        self._lengths = [self._lengths[slot] for slot in order] + pad
        self._longest = [self._longest[slot] for slot in order] + pad
        self._open = {new for new, old in enumerate(order) if old in self._open}
