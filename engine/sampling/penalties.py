"""Repetition, frequency and presence penalties over a window that ends with the newest token.

The newest token may still be lazy on the device: it is the very input of the forward whose logits
are penalised. The host therefore counts the tokens *before* it, and the device folds it in, so a
penalised row stays pipelined and its history is never one token stale.

Formulas (llama.cpp): a seen token's logit is divided by the repetition penalty when positive and
multiplied when not; then frequency * count + presence is subtracted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

LEAST_SLOTS = 16
"""Slots a row uploads at least; powers of two, so that few shapes come up."""


class PenaltyWindow:
    """How often each token occurs in the tokens before the newest one, kept incrementally.

    Invariant: counts are those of ``ids[max(0, upto - size):upto]`` of the sequence that
    ``extend`` was given.
    """

    __slots__ = ("_counts", "_ids", "_slots", "_tokens", "size", "upto")

    def __init__(self, size: int | None) -> None:
        """``size``: tokens before the newest that count; None is the whole context."""
        self.size = size
        self.upto = 0
        self._slots: dict[int, int] = {}
        self._tokens: list[int] = []
        self._ids: npt.NDArray[np.int32] = np.zeros(LEAST_SLOTS, np.int32)
        self._counts: npt.NDArray[np.float32] = np.zeros(LEAST_SLOTS, np.float32)

    def __len__(self) -> int:
        """Distinct tokens in the window."""
        return len(self._tokens)

    def copy(self) -> "PenaltyWindow":
        """A window of the same content that moves on its own."""
        twin = PenaltyWindow(self.size)
        twin.upto = self.upto
        twin._slots = dict(self._slots)
        twin._tokens = list(self._tokens)
        twin._ids = self._ids.copy()
        twin._counts = self._counts.copy()
        return twin

    def extend(self, ids: Sequence[int], upto: int) -> None:
        """Cover ``ids[:upto]``; O(new tokens) forward, a rebuild backward or over a gap."""
        # A slice past the end would be short without a word.
        assert 0 <= upto <= len(ids), "the window is asked for tokens that are not known yet"
        start = 0 if self.size is None else max(0, upto - self.size)
        if upto < self.upto or start >= self.upto:
            self._clear()
            self.upto = start
        elif self.size is not None:
            for token in ids[max(0, self.upto - self.size) : start]:
                self._remove(token)
        for token in ids[self.upto : upto]:
            self._add(token)
        self.upto = upto

    def write(self, ids: npt.NDArray[np.int32], counts: npt.NDArray[np.float32]) -> None:
        """Copy the window into one row of the arrays to upload."""
        used = len(self._tokens)
        ids[:used] = self._ids[:used]
        counts[:used] = self._counts[:used]

    def _clear(self) -> None:
        self._slots.clear()
        self._tokens.clear()

    def _add(self, token: int) -> None:
        slot = self._slots.get(token)
        if slot is not None:
            self._counts[slot] += 1
            return
        slot = len(self._tokens)
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._slots[token] = slot
        self._tokens.append(token)
        self._ids[slot] = token
        self._counts[slot] = 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot]:
            return
        del self._slots[token]
        last = self._tokens.pop()
        if last != token:
            # The last slot moves into the hole, so that the used slots stay a prefix.
            self._tokens[slot] = last
            self._slots[last] = slot
            self._ids[slot] = last
            self._counts[slot] = self._counts[len(self._tokens)]


class PenaltyParams(NamedTuple):
    """float32[R, 1] each; 1, 0, 0 leave a row as it is."""

    repetition: mx.array
    frequency: mx.array
    presence: mx.array


def upload_windows(windows: Sequence[PenaltyWindow | None]) -> tuple[mx.array, mx.array]:
    """The windows of a batch, padded to one width.

    Returns:
        int32[R, U] ids and float32[R, U] counts. Every row has at least one free slot, whose id
        is -1: that is where the device puts the newest token.
    """
    longest = max((len(window) for window in windows if window is not None), default=0)
    width = LEAST_SLOTS
    while width <= longest:
        width *= 2
    ids = np.full((len(windows), width), -1, np.int32)
    counts = np.zeros((len(windows), width), np.float32)
    for row, window in enumerate(windows):
        if window is not None:
            window.write(ids[row], counts[row])
    return mx.array(ids), mx.array(counts)


def penalise(
    logits: mx.array, *, newest: mx.array, window: tuple[mx.array, mx.array], params: PenaltyParams
) -> mx.array:
    """Logits with the three penalties of each row applied.

    Args:
        logits: float32[R, V].
        newest: int32[R], the last token of each row's window; may be lazy.
        window: what ``upload_windows`` gave.
        params: strengths.

    Returns:
        float32[R, V]; only the entries of seen tokens differ.
    """
    ids, counts = window
    # A row that failed feeds -1; it must not address memory outside its logits.
    last = mx.maximum(newest, 0)[:, None]
    is_last = ids == last
    last_count = 1 + mx.where(is_last, counts, 0.0).sum(axis=-1, keepdims=True)
    # Free slots become duplicates of the newest token: they write the same value to its place.
    free = ids < 0
    ids = mx.where(free, last, ids)
    counts = mx.where(free | is_last, last_count, counts)
    seen = mx.take_along_axis(logits, ids, axis=-1)
    scaled = mx.where(seen > 0, seen / params.repetition, seen * params.repetition)
    lowered = scaled - (counts * params.frequency + params.presence)
    # An impossible token stays so: inf - inf would be NaN.
    lowered = mx.where(seen > -mx.inf, lowered, seen)
    return mx.put_along_axis(logits, ids, lowered, axis=-1)
