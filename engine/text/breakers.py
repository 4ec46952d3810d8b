"""DRY's sequence breakers as token ids.

Source: llama.cpp's DRY sampler, which breaks a repeated sequence at any token whose text holds a
breaker, whatever else the token holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

KEPT_SETS = 32
"""Sets of breakers whose ids are kept; the one not used for longest is dropped first."""

BreakerIds = tuple[tuple[int, ...], ...]


def breaker_ids(tokenizer: Tokenizer, breakers: Sequence[str]) -> BreakerIds:
    """Every token that contains a breaker, and each breaker's own tokens.

    The first call for a tokenizer spells its whole vocabulary (0.2 s for 150,000 entries); what was
    asked before is looked up. A server calls it ahead of the engine thread.

    Args:
        tokenizer: the model's.
        breakers: texts; empty ones are dropped.
    """
    return tokenizer.breakers.ids(tokenizer, tuple(text for text in breakers if text))


class BreakerIndex:
    """The bytes of a vocabulary, to be searched for breakers. Safe to share between threads."""

    __slots__ = ("_known", "_lock", "_starts", "_text")

    def __init__(self) -> None:
        self._text: bytes | None = None
        """The bytes of all tokens, one after the other."""
        self._starts: list[int] = []
        """Where each token begins, and where the last one ends."""
        self._known: OrderedDict[tuple[str, ...], BreakerIds] = OrderedDict()
        self._lock = Lock()

    def ids(self, tokenizer: Tokenizer, breakers: tuple[str, ...]) -> BreakerIds:
        """`breaker_ids` of breakers of which none is empty."""
        with self._lock:
            if breakers in self._known:
                self._known.move_to_end(breakers)
                return self._known[breakers]
            found = self._find(tokenizer, breakers)
            self._known[breakers] = found
            if len(self._known) > KEPT_SETS:
                self._known.popitem(last=False)
            return found

    def _find(self, tokenizer: Tokenizer, breakers: tuple[str, ...]) -> BreakerIds:
        if self._text is None:
            pieces = [tokenizer.piece_bytes(token) for token in range(tokenizer.vocab_size)]
            self._text = b"".join(pieces)
            self._starts = [0, *accumulate(map(len, pieces))]
        # A lone surrogate, which is in no token, has no UTF-8.
        marks = {text.encode(errors="surrogatepass") for text in breakers}
        holding = {token for mark in marks for token in self._holding(self._text, mark)}
        spelled = [tokenizer.encode(text) for text in breakers]
        alone = [(token,) for token in sorted(holding)]
        return tuple(dict.fromkeys([*alone, *(ids for ids in spelled if len(ids) > 1)]))

    def _holding(self, text: bytes, mark: bytes) -> Iterator[int]:
        """Tokens whose bytes hold a mark."""
        place = text.find(mark)
        while place >= 0:
            token = bisect_right(self._starts, place) - 1
            stop = self._starts[token + 1]
            if place + len(mark) <= stop:
                yield token
                place = text.find(mark, stop)
            else:
                place = text.find(mark, place + 1)
