"""The storage contract: rows that grow by forwards and shrink by rewinds, whatever a layer keeps.

The engine opens a row, runs forwards over one row or over all of them, and cuts rows back. Models
are handed ``caches`` and never learn which kind they hold.

Invariants (each pinned by a test):
    K1  A row's length changes only by a forward it takes part in, by `rewind`, or by `restore`.
    K2  A forward that raises while its graph is built changes no length.
    K3  Inactive rows of a forward are unchanged, bit for bit, in everything they can see.
    K4  Nothing that was never drawn from reaches the next row of a slot: what a failed or cancelled
        row held, and what any row was cut back by, is zeroed before it is used again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from engine.errors import SnapshotError
from engine.kv.layer import RowArrays


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """One row's KV as arrays of its own; another storage of the same model can restore it."""

    tokens: int
    layers: tuple[RowArrays, ...]
    overshoot: int = 0
    """Tokens the row once held more than these; a ring has overwritten as many old ones."""
    is_whole: bool = False
    """Whether a layer (a ring, recurrent state) is of exactly these tokens: no prefix is in it."""

    @property
    def nbytes(self) -> int:
        """Bytes the arrays take."""
        return sum(array.nbytes for layer in self.layers for array in layer)

    def first(self, tokens: int) -> "RowSnapshot":
        """The KV of the first ``tokens`` tokens; a view, not a copy.

        Raises:
            SnapshotError: there are fewer, or this KV exists only as a whole.
        """
        if tokens == self.tokens:
            return self
        if not 0 <= tokens < self.tokens:
            raise SnapshotError(f"KV of {self.tokens} tokens has no first {tokens}")
        if self.is_whole:
            raise SnapshotError(
                f"this family's KV of {self.tokens} tokens cannot be cut to {tokens}: a ring or "
                "recurrent state does not hold what it was earlier"
            )
        layers = tuple(tuple(array[:, :, :tokens] for array in layer) for layer in self.layers)
        return RowSnapshot(tokens, layers)


class Storage(Protocol):
    """Where the rows of one engine live."""

    @property
    def batches(self) -> bool:
        """Whether one forward can take several rows; else each row runs alone."""

    @property
    def pads(self) -> bool:
        """Whether one forward can append several tokens to several rows (`padded`)."""

    @property
    def rows(self) -> int:
        """Rows of a batched forward; slots are below this."""

    @property
    def capacity(self) -> int:
        """Token positions each of these rows has allocated; 0 where every row has its own."""

    def open(self, expected_tokens: int) -> int:
        """Take a slot for an empty row that will hold about ``expected_tokens``."""

    def close(self, slot: int, *, failed: bool) -> None:
        """Give a slot back; a failed row's storage is zeroed."""

    def fit(self) -> list[int] | None:
        """Shrink what fewer open rows need; the old slot of each new one, or None."""

    def begins_alone(self, slot: int) -> bool:
        """Whether the row's next token needs a forward of its own.

        It is the first of a row with state: a family may treat none otherwise than zeros.
        """

    def length(self, slot: int) -> int:
        """Tokens appended to a row, committed or not."""

    def rewind_limit(self, slot: int) -> int | None:
        """Tokens the row can be cut back by now; None: any number it holds."""

    def draft_limit(self, slot: int) -> int | None:
        """Tokens of one forward that can be cut off again; None: any number."""

    def wipe(self, slot: int) -> None:
        """Zero what a row was cut back by, if anything reads behind its end."""

    def rewind(self, slot: int, tokens: int) -> None:
        """Cut a row back by ``tokens``.

        Raises:
            RewindFailed: the row cannot go back that far; it is unchanged.
        """

    @contextmanager
    def one(self, slot: int, width: int) -> Iterator[Sequence[Any]]:
        """The caches of a one-row forward of ``width`` tokens."""

    @contextmanager
    def all(self, slots: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The caches of a forward of one token for each of ``slots``; others are inactive."""

    @contextmanager
    def padded(self, widths: Mapping[int, int]) -> Iterator[Sequence[Any]]:
        """The caches of a forward as wide as the widest of ``widths``, where it `pads`.

        Args:
            widths: slot to the tokens that are appended to it; what is fed behind them is not.
                Other rows are inactive.
        """

    def padding_fits(self, widths: Mapping[int, int], most: int) -> bool:
        """Whether `padded` stays below ``most`` and allocates nothing for the padding's sake.

        Args:
            widths: as for `padded`.
            most: positions that exist: past them a model may have no embedding.
        """

    def arrays(self) -> list[mx.array]:
        """Every array of the storage, for evaluation and accounting."""

    def save(self, slot: int, tokens: int, back: int = 0, start: int = 0) -> RowSnapshot:
        """Copies of a row's first ``tokens`` tokens (of all of them where it cannot be cut).

        Args:
            slot: the row.
            tokens: at most those it held ``back`` tokens ago.
            back: newest tokens to leave out, within `rewind_limit`; the row itself keeps them.
            start: tokens to leave out at the beginning, where it can be cut.
        """

    def load(self, slot: int, snapshot: RowSnapshot) -> None:
        """Fill an empty row from a snapshot."""

    def reset(self) -> None:
        """Drop every row and array: what is left when the backend failed in shared arrays."""
