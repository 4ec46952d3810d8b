"""One stretch of a context's n-grams as sorted arrays: built in bulk, read by binary search.

An n-gram is named by the place where it ends and read leftwards, so that one walk answers every
length: level n maps (rank of the shorter n-gram, token to its left) to a rank and the latest end.
Ranks keep every key inside 64 bits for any vocabulary below 2^32 and any n: no hash, no collision.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Positions = NDArray[np.uint32]

_TOKEN_BITS = 32


@dataclass(frozen=True, slots=True)
class _Level:
    """All n-grams of one length: ``keys`` sorted, uint64[U]; ``ends`` uint32[U], latest end."""

    ngram: int
    keys: Keys
    ends: Positions


@dataclass(frozen=True, slots=True)
class NgramSegment:
    """N-grams that end in [start, stop); immutable. About 12 bytes a distinct n-gram."""

    start: int
    stop: int
    _levels: tuple[_Level, ...]

    @classmethod
    def build(
        cls, tokens: "array[int]", *, start: int, stop: int, ngram_min: int, ngram_max: int
    ) -> "NgramSegment":
        """Index the n-grams of ``tokens`` that end in [start, stop).

        Lengths below ``ngram_min`` are kept as the way to the longer ones, a single token aside:
        it is its own rank.
        """
        first = max(0, start - ngram_max + 1)
        window = np.frombuffer(tokens[first:stop], dtype=np.uint32)
        ranks = window[start - first :].astype(np.uint64)
        low = start
        levels = []
        if ngram_min == 1:
            keys, ends, _ = _group(ranks)
            levels.append(_Level(1, keys, ends + np.uint32(low)))
        for ngram in range(2, ngram_max + 1):
            missing = max(0, ngram - 1 - low)  # ends too near the beginning for this length
            ranks, low = ranks[missing:], low + missing
            if not ranks.size:
                break
            left = window[low - first - ngram + 1 : stop - first - ngram + 1]
            keys, ends, ranks = _group((ranks << np.uint64(_TOKEN_BITS)) | left)
            levels.append(_Level(ngram, keys, ends + np.uint32(low)))
        return cls(start, stop, tuple(levels))

    def longest(self, suffix: Sequence[int]) -> tuple[int, int] | None:
        """Length and latest end of the longest n-gram here that ends like ``suffix``."""
        found = None
        rank = suffix[-1]
        for level in self._levels:
            if level.ngram > len(suffix):
                break
            key = rank if level.ngram == 1 else (rank << _TOKEN_BITS) | suffix[-level.ngram]
            place = int(level.keys.searchsorted(np.uint64(key)))
            if place == len(level.keys) or int(level.keys[place]) != key:
                break
            found = level.ngram, int(level.ends[place])
            if level.ngram > 1:
                rank = place
        return found


def _group(keys: Keys) -> tuple[Keys, Positions, Keys]:
    """Distinct keys in order, the last place of each, and every key's rank."""
    order = np.argsort(keys)
    ordered = keys[order]
    is_first = np.empty(len(keys), dtype=np.bool_)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    ranks = np.empty(len(keys), dtype=np.uint64)
    ranks[order] = np.cumsum(is_first) - 1
    last_places = np.maximum.reduceat(order, firsts).astype(np.uint32)
    return ordered[firsts], last_places, ranks
