"""Finds where the newest tokens of a context stood before, longest n-gram and latest place first.

The answer is that of a naive backward scan (the tests' reference). Long stretches are indexed in
bulk as sorted arrays, the newest tokens in dictionaries, which a bulk build swallows from time to
time. With n-grams of 2 and 3 a 128K-token context costs 28 to 66 bytes a token, peaks included,
builds in 15 ms and is asked in 11 us, on one core of a small server.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.lookup.ngram_segment import NgramSegment

SEGMENT_TOKENS = 32_768
"""Most tokens of one bulk build: 4 ms for n-grams of 2 and 3 (measured)."""
TAIL_TOKENS = 16_384
"""Most tokens the dictionaries hold, at about 190 bytes each; a shorter segment is built anew with
what follows it, so that a long context never falls apart into many small ones."""
BULK_TOKENS = 1_024
"""From this many new tokens on, a bulk build beats the dictionaries."""

_TOKEN_BITS = 32


@dataclass(frozen=True, slots=True)
class Match:
    """An n-gram equal to the context's end."""

    ngram: int
    """Its length in tokens."""
    follower: int
    """Position of the token after it, which exists."""


class NgramIndex:
    """A growing token sequence and the n-grams in it that have a follower.

    Appending only stores; ``extend`` indexes, all of it or a slice. Token ids are below 2^32.
    """

    __slots__ = (
        "_indexed",
        "_ngram_max",
        "_ngram_min",
        "_segments",
        "_tables",
        "_tail_start",
        "tokens",
    )

    def __init__(self, *, ngram_min: int, ngram_max: int, tokens: Iterable[int] = ()) -> None:
        self._ngram_min = ngram_min
        self._ngram_max = ngram_max
        self.tokens = array("I", tokens)
        """The sequence itself; to be changed by ``append`` only."""
        self._segments: list[NgramSegment] = []
        self._tables: list[dict[int, int]] = [{} for _ in range(ngram_min, ngram_max + 1)]
        self._tail_start = 0  # the tables hold ends in [_tail_start, _indexed)
        self._indexed = 0  # ends below this are findable

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_current(self) -> bool:
        """Whether every n-gram that has a follower can be found."""
        return self._indexed >= len(self.tokens) - 1

    def append(self, tokens: Iterable[int]) -> None:
        """Add tokens to the end, without indexing them."""
        self.tokens.extend(tokens)

    def extend(self, limit_tokens: int | None = None) -> bool:
        """Index at most ``limit_tokens`` of what was appended; whether nothing is left to do."""
        stop = max(len(self.tokens) - 1, self._indexed)
        if limit_tokens is not None:
            stop = min(stop, self._indexed + max(1, limit_tokens))
        if stop - self._indexed < BULK_TOKENS and stop - self._tail_start <= TAIL_TOKENS:
            self._extend_tables(stop)
        else:
            self._extend_segments(stop)
        self._indexed = stop
        return self.is_current

    def match(self, suffix: Sequence[int]) -> Match | None:
        """The longest n-gram ending like ``suffix``, and of that length the latest one.

        Only what ``extend`` has indexed is found. The index is not changed.
        """
        best = self._match_tables(suffix)
        for segment in reversed(self._segments):
            if best is not None and best.ngram == self._ngram_max:
                break
            found = segment.longest(suffix[-self._ngram_max :]) if suffix else None
            if found and found[0] >= self._ngram_min and (best is None or found[0] > best.ngram):
                best = Match(found[0], found[1] + 1)
        return best

    def after(self, match: Match, limit_tokens: int) -> tuple[int, ...]:
        """At most ``limit_tokens`` tokens that followed a match, clipped at the end."""
        return tuple(self.tokens[match.follower : match.follower + limit_tokens])

    def agreement(self, context: Sequence[int], match: Match, limit_tokens: int) -> int:
        """How many tokens before a match's follower equal the end of ``context``, up to a limit."""
        tokens = self.tokens
        limit = min(limit_tokens, match.follower, len(context))
        same = match.ngram
        while same < limit and tokens[match.follower - 1 - same] == context[-1 - same]:
            same += 1
        return same

    def _match_tables(self, suffix: Sequence[int]) -> Match | None:
        best = None
        key = 0
        for ngram in range(1, min(self._ngram_max, len(suffix)) + 1):
            key = (key << _TOKEN_BITS) | suffix[-ngram]
            if ngram >= self._ngram_min:
                end = self._tables[ngram - self._ngram_min].get(key)
                if end is None:  # a longer n-gram contains this one, with the same end
                    break
                best = Match(ngram, end + 1)
        return best

    def _extend_tables(self, stop: int) -> None:
        """Add the n-grams that end in [_indexed, stop); a later end replaces an earlier one."""
        start = self._indexed
        first = max(0, start - self._ngram_max + 1)
        window = self.tokens[first:stop].tolist()
        for end in range(start, stop):
            key = 0
            for ngram in range(1, min(self._ngram_max, end + 1) + 1):
                key = (key << _TOKEN_BITS) | window[end - first - ngram + 1]
                if ngram >= self._ngram_min:
                    self._tables[ngram - self._ngram_min][key] = end

    def _extend_segments(self, stop: int) -> None:
        """Build segments up to ``stop`` from the tables' stretch and a short last segment."""
        start = self._tail_start
        if self._segments and self._segments[-1].stop - self._segments[-1].start < TAIL_TOKENS:
            start = self._segments.pop().start
        for low in range(start, stop, SEGMENT_TOKENS):
            high = min(low + SEGMENT_TOKENS, stop)
            self._segments.append(
                NgramSegment.build(
                    self.tokens,
                    start=low,
                    stop=high,
                    ngram_min=self._ngram_min,
                    ngram_max=self._ngram_max,
                )
            )
        for table in self._tables:
            table.clear()
        self._tail_start = stop
