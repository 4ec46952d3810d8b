"""Storage of families that cannot share a forward: each row has mlx-lm's own caches.

Used where a family brings cache classes the pool has no layer for (chunked attention, its own
layouts). Rows are cut back by mlx-lm's trim where every cache allows it, else by the copy taken
before each append; such copies are shared until written (copy-on-write), so one append back is
all that is kept.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import mlx.core as mx

from engine.errors import RewindFailed, UnsupportedModel
from engine.kv.ring import SLACK_TOKENS
from engine.kv.storage import RowSnapshot


class Solo:
    """One set of mlx-lm caches per row.

    Args:
        make_caches: gives a fresh set for a row.
        cuts_inside: whether a forward of several tokens gives what single ones give, so that
            drafts can be verified.
    """

    batches = False
    pads = False

    def __init__(self, make_caches: Callable[[], list[Any]], *, cuts_inside: bool = True) -> None:
        self._make_caches = make_caches
        self._cuts_inside = cuts_inside
        self._rows: dict[int, _SoloRow] = {}

    @property
    def rows(self) -> int:
        """One past the highest slot in use."""
        return max(self._rows, default=0) + 1

    @property
    def capacity(self) -> int:
        """Every row has its own."""
        return 0

    def open(self, expected_tokens: int) -> int:
        """Take the lowest free slot."""
        del expected_tokens
        slot = next(slot for slot in range(len(self._rows) + 1) if slot not in self._rows)
        self._rows[slot] = _SoloRow(self._make_caches())
        return slot

    def close(self, slot: int, *, failed: bool) -> None:
        """Drop a row's caches."""
        del failed
        self._rows.pop(slot, None)

    def fit(self) -> list[int] | None:
        """Rows stand alone: nothing to shrink."""
        return None

    def begins_alone(self, slot: int) -> bool:
        """Every row has its own forwards."""
        del slot
        return False

    def length(self, slot: int) -> int:
        """Tokens appended to a row, committed or not."""
        return self._rows[slot].tokens

    def rewind_limit(self, slot: int) -> int | None:
        """Tokens the row can be cut back by now; None: any number it holds."""
        row = self._rows[slot]
        if row.trims():
            return None
        return 0 if row.before is None else row.tokens - row.before.tokens

    def draft_limit(self, slot: int) -> int | None:
        """Tokens of one forward that can be cut off again; None: any number."""
        # Past its window a rotating cache cannot be trimmed: a round must end before that.
        return None if self._cuts_inside and self._rows[slot].trims(SLACK_TOKENS) else 0

    def wipe(self, slot: int) -> None:
        """mlx-lm's caches are read to their end and no further."""

    def rewind(self, slot: int, tokens: int) -> None:
        """Cut a row back by ``tokens``."""
        row = self._rows[slot]
        if tokens == 0:
            return
        if row.trims() and tokens <= row.tokens:
            if any(cache.trim(tokens) != tokens for cache in row.caches):
                raise RewindFailed("a layer's cache dropped fewer tokens than asked")
            row.tokens -= tokens
        elif row.before is not None and row.tokens - row.before.tokens == tokens:
            self._rows[slot] = row.before
        else:
            raise RewindFailed(f"this family's caches cannot be cut back by {tokens} tokens")

    @contextmanager
    def one(self, slot: int, width: int) -> Iterator[Sequence[Any]]:
        """The caches of a forward of ``width`` tokens."""
        row = self._rows[slot]
        before = None if row.trims(width) else _SoloRow(copy.deepcopy(row.caches), row.tokens)
        try:
            yield row.caches
        except BaseException:
            if before is None:
                row.cut()
            else:
                self._rows[slot] = before
            raise
        row.tokens += width
        row.before = before

    @contextmanager
    def all(self, slots: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The caches of a one-token forward of the one slot in ``slots``."""
        (slot,) = slots
        with self.one(slot, 1) as caches:
            yield caches

    def padded(self, widths: Mapping[int, int]) -> NoReturn:
        """Not possible: rows share no forward.

        Raises:
            UnsupportedModel: always.
        """
        raise UnsupportedModel(f"rows {sorted(widths)} of this family cannot share a forward")

    def padding_fits(self, widths: Mapping[int, int], most: int) -> bool:
        """Rows share no forward."""
        del widths, most
        return False

    def arrays(self) -> list[mx.array]:
        """Every array of every row."""
        found: list[mx.array] = []
        for row in self._rows.values():
            found += _arrays([cache.state for cache in row.caches if not cache.empty()])
        return found

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowSnapshot:
        """Not possible: these caches' layout is the family's own.

        Raises:
            UnsupportedModel: always.
        """
        del back, start
        raise UnsupportedModel(f"this family's KV cannot be taken out of row {slot} ({tokens})")

    def load(self, slot: int, snapshot: RowSnapshot) -> None:
        """Not possible; see `save`.

        Raises:
            UnsupportedModel: always.
        """
        raise UnsupportedModel(
            f"this family's KV cannot be put into row {slot} ({snapshot.tokens} tokens)"
        )

    def reset(self) -> None:
        """Drop every row."""
        self._rows.clear()


class _SoloRow:
    __slots__ = ("before", "caches", "tokens")

    def __init__(self, caches: list[Any], tokens: int = 0) -> None:
        self.caches = caches
        self.tokens = tokens
        self.before: _SoloRow | None = None

    def trims(self, width: int = 0) -> bool:
        """Whether every cache can be trimmed, still so after ``width`` more tokens."""
        return all(cache.is_trimmable() for cache in self.caches) and not any(
            part.offset + width >= part.max_size
            for part in self._parts()
            if hasattr(part, "max_size")
        )

    def cut(self) -> None:
        """Trim what a forward that raised has appended to some of the caches."""
        for part in self._parts():
            part.trim(part.offset - self.tokens)

    def _parts(self) -> Iterator[Any]:
        for cache in self.caches:
            yield from getattr(cache, "caches", [cache])


def _arrays(state: object) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in _arrays(part)]
    return []
