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
from engine.sampling.adjustments import MOST_BIAS, Adjustment

FEW_TOKENS = 16
"""Up to this many new tokens are added one by one; more are matched in one linear pass."""

_LOG_FLOAT_MAX = 88.7228391
"""ln of the largest float32: the exponent stops there."""


class DryHistory:
    """The matches of a sequence's tail with its own past.

    Invariant: the arrays hold the sequence from token ``_first`` on, at least as far back as
    DRY looks. ``_match[i]`` is the length of the longest common suffix of the tokens up to entry
    i and of the whole (at least as far as entries reach), 0 for the last entry.
    """

    __slots__ = (
        "_breakers",
        "_first",
        "_ids",
        "_match",
        "_params",
        "_since_break",
        "_single",
        "upto",
    )

    def __init__(self, params: SamplingParams, breakers: Sequence[Sequence[int]]) -> None:
        self._params = params
        self._single = frozenset(breaker[0] for breaker in breakers if len(breaker) == 1)
        self._breakers = tuple(tuple(breaker) for breaker in breakers if len(breaker) > 1)
        self._ids: npt.NDArray[np.int32] = np.zeros(64, np.int32)
        self._match: npt.NDArray[np.int32] = np.zeros(64, np.int32)
        self._first = 0
        self._since_break = 0
        self.upto = 0

    def copy(self) -> "DryHistory":
        """A history of the same content that moves on its own."""
        twin = DryHistory(self._params, self._breakers)
        twin._single = self._single
        twin._first, twin._since_break, twin.upto = self._first, self._since_break, self.upto
        twin._ids = self._ids.copy()
        twin._match = self._match.copy()
        return twin

    def extend(self, ids: Sequence[int], upto: int) -> None:
        """Cover ``ids[:upto]``; going back, or far ahead, starts over."""
        assert 0 <= upto <= len(ids), "DRY is asked about tokens that are not known yet"
        if not 0 <= upto - self.upto <= FEW_TOKENS:
            self._rebuild(ids, upto)
            return
        for token in ids[self.upto : upto]:
            self._push(token)

    def penalties(self) -> Adjustment | None:
        """What DRY adds to the logits of the next token: distinct ids, negative values."""
        held = self.upto - self._first
        window = held if self._reach is None else min(held, self._reach)
        allowed = self._params.dry_allowed_length
        limit = min(window, self._since_break)
        if window <= allowed or limit < allowed:
            return None
        start = held - window
        # A match may not reach past the window's first token, nor past the last breaker.
        lengths = np.minimum(self._match[start : held - 1], np.arange(1, window, dtype=np.int32))
        lengths = np.minimum(lengths, limit)
        hit = lengths >= allowed
        return self._priced(self._ids[start + 1 : held][hit], lengths[hit])

    @property
    def _reach(self) -> int | None:
        """Newest tokens that DRY looks at; None is all."""
        last_n = self._params.dry_penalty_last_n
        return None if last_n < 0 else last_n

    def _priced(
        self, followers: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> Adjustment | None:
        longest: dict[int, int] = {}
        for token, length in zip(followers.tolist(), lengths.tolist(), strict=True):
            if token not in self._single and length >= longest.get(token, 0):
                longest[token] = length
        if not longest:
            return None
        params = self._params
        exponent = np.array(list(longest.values()), np.float64) - params.dry_allowed_length
        if params.dry_base > 1.000001:
            exponent = np.minimum(exponent, _LOG_FLOAT_MAX / math.log(params.dry_base))
        price = params.dry_multiplier * np.power(params.dry_base, exponent)
        ids = np.array(list(longest), np.int32)
        return ids, -np.minimum(price, MOST_BIAS).astype(np.float32)

    def _push(self, token: int) -> None:
        self._make_room()
        held = self.upto - self._first
        ids, match = self._ids, self._match
        if held:
            longer = np.empty(held, np.int32)
            longer[0] = 1
            np.add(match[: held - 1], 1, out=longer[1:])
            longer[ids[:held] != token] = 0
            match[:held] = longer
        ids[held], match[held] = token, 0
        self.upto += 1
        self._since_break = 0 if self._ends_breaker(held + 1) else self._since_break + 1

    def _rebuild(self, ids: Sequence[int], upto: int) -> None:
        self._first = 0 if self._reach is None else max(0, upto - self._reach)
        tail = list(ids[self._first : upto])
        held = len(tail)
        self._ids = np.zeros(max(64, 2 * held), np.int32)
        self._match = np.zeros_like(self._ids)
        self._ids[:held] = tail
        self._match[:held] = suffix_matches(tail)
        self.upto = upto
        self._since_break = next(
            (since for since in range(held) if self._ends_breaker(held - since)), held
        )

    def _ends_breaker(self, stop: int) -> bool:
        """Whether entry ``stop - 1`` is the last token of a breaker."""
        last = int(self._ids[stop - 1])
        return last in self._single or any(
            last == breaker[-1] and tuple(self._ids[max(0, stop - len(breaker)) : stop]) == breaker
            for breaker in self._breakers
        )

    def _make_room(self) -> None:
        """Let one more entry fit: forget what is out of reach, or grow."""
        held = self.upto - self._first
        if held < len(self._ids):
            return
        if self._reach is not None and held >= 2 * self._reach:
            for array in (self._ids, self._match):
                array[: self._reach] = array[held - self._reach : held]
            self._first = self.upto - self._reach
            return
        self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._match = np.concatenate([self._match, np.zeros_like(self._match)])


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
