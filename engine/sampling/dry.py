"""DRY ("don't repeat yourself"): penalises the tokens that would extend a repetition.

If the last n tokens also occurred earlier, the token that followed them there is lowered by
``multiplier * base ** (n - allowed_length)``, for n of at least ``allowed_length``. A repetition
does not reach back past a sequence breaker.

The length of every earlier match is kept and moved on by one token at a time, so a step costs one
vector operation over the window, whatever the text repeats. Source of the rule: p-e-w,
text-generation-webui#5677; boundary and limits as in llama.cpp.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.params import SamplingParams
from engine.sampling.adjustments import Adjustment

_LOG_FLOAT_MAX = 88.7228391
"""ln of the largest float32: the exponent stops there."""


class DryHistory:
    """The matches of a sequence's tail with its own past.

    Invariant: ``_match[i]`` is the length of the longest common suffix of ``ids[:i + 1]`` and
    ``ids[:upto]``, for every i but the last; the last one is 0.
    """

    __slots__ = ("_breakers", "_capacity_ids", "_match", "_params", "_since_break", "upto")

    def __init__(self, params: SamplingParams, breakers: Sequence[Sequence[int]]) -> None:
        self._params = params
        self._breakers = tuple(tuple(breaker) for breaker in breakers if breaker)
        self._capacity_ids: npt.NDArray[np.int32] = np.zeros(64, np.int32)
        self._match: npt.NDArray[np.int32] = np.zeros(64, np.int32)
        self._since_break = 0
        self.upto = 0

    def copy(self) -> "DryHistory":
        """A history of the same content that moves on its own."""
        twin = DryHistory(self._params, self._breakers)
        twin._capacity_ids = self._capacity_ids.copy()
        twin._match = self._match.copy()
        twin._since_break = self._since_break
        twin.upto = self.upto
        return twin

    def extend(self, ids: Sequence[int], upto: int) -> None:
        """Cover ``ids[:upto]``; going back starts over."""
        if upto < self.upto:
            self._since_break = 0
            self.upto = 0
        if upto - self.upto > 16:
            self._rebuild(ids, upto)
            return
        for token in ids[self.upto : upto]:
            self._push(token)

    def penalties(self) -> Adjustment | None:
        """What DRY adds to the logits of the next token: distinct ids, negative values."""
        params, n = self._params, self.upto
        window = n if params.dry_penalty_last_n < 0 else min(n, params.dry_penalty_last_n)
        allowed = params.dry_allowed_length
        limit = min(window, self._since_break)
        if window <= allowed or limit < allowed:
            return None
        start = n - window
        # A match may not reach past the window's first token, nor past the last breaker.
        lengths = np.minimum(self._match[start : n - 1], np.arange(1, window, dtype=np.int32))
        lengths = np.minimum(lengths, limit)
        hit = lengths >= allowed
        followers = self._capacity_ids[start + 1 : n][hit]
        return self._priced(followers, lengths[hit])

    def _priced(
        self, followers: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> Adjustment | None:
        single = [breaker[0] for breaker in self._breakers if len(breaker) == 1]
        if single:
            free = ~np.isin(followers, single)
            followers, lengths = followers[free], lengths[free]
        if not len(followers):
            return None
        ids, inverse = np.unique(followers, return_inverse=True)
        longest = np.zeros(len(ids), np.int32)
        np.maximum.at(longest, inverse, lengths)
        params = self._params
        exponent = (longest - params.dry_allowed_length).astype(np.float64)
        if params.dry_base > 1.000001:
            exponent = np.minimum(exponent, _LOG_FLOAT_MAX / math.log(params.dry_base))
        price = params.dry_multiplier * np.power(params.dry_base, exponent)
        return ids.astype(np.int32), -np.minimum(price, 1e30).astype(np.float32)

    def _push(self, token: int) -> None:
        n = self.upto
        self._reserve(n + 1)
        ids, match = self._capacity_ids, self._match
        if n:
            longer = np.empty(n, np.int32)
            longer[0] = 1
            np.add(match[: n - 1], 1, out=longer[1:])
            longer[ids[:n] != token] = 0
            match[:n] = longer
        ids[n], match[n] = token, 0
        self.upto = n + 1
        self._since_break = 0 if self._ends_breaker(self.upto) else self._since_break + 1

    def _rebuild(self, ids: Sequence[int], upto: int) -> None:
        self._reserve(upto)
        tail = list(ids[:upto])
        self._capacity_ids[:upto] = tail
        self._match[:upto] = suffix_matches(tail)
        self.upto = upto
        self._since_break = next(
            (since for since in range(upto) if self._ends_breaker(upto - since)), upto
        )

    def _ends_breaker(self, upto: int) -> bool:
        """Whether a breaker's last token is the one before ``upto``."""
        ids = self._capacity_ids
        return any(
            len(breaker) <= upto
            and ids[upto - 1] == breaker[-1]
            and tuple(ids[upto - len(breaker) : upto].tolist()) == breaker
            for breaker in self._breakers
        )

    def _reserve(self, length: int) -> None:
        if length > len(self._match):
            grown = max(length, 2 * len(self._match))
            self._capacity_ids = np.concatenate(
                [self._capacity_ids, np.zeros(grown - len(self._capacity_ids), np.int32)]
            )
            self._match = np.concatenate(
                [self._match, np.zeros(grown - len(self._match), np.int32)]
            )


def suffix_matches(ids: Sequence[int]) -> list[int]:
    """For each i, the longest common suffix of ``ids[:i + 1]`` and ``ids``; 0 for the last.

    Linear time whatever repeats: a match inside a known match is copied from it.

    Source: Gusfield, "Algorithms on Strings, Trees and Sequences", 1997 (the Z function).
    """
    n = len(ids)
    reverse = ids[::-1]
    z = [0] * n
    left = right = 0
    for i in range(1, n):
        length = min(right - i, z[i - left]) if i < right else 0
        while i + length < n and reverse[length] == reverse[i + length]:
            length += 1
        z[i] = length
        if i + length > right:
            left, right = i, i + length
    return z[::-1]
