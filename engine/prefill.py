"""How a prompt is cut into forwards.

The last prompt token is always a forward of its own, one token wide: cold, chunked and
cache-hit runs then share the kernel that gives the first logits, and so does mlx-lm.
"""

from collections.abc import Iterator
from dataclasses import dataclass

PREFILL_CHUNK_TOKENS = 2048
"""Most prompt tokens of one forward: 512 costs 8 to 29 % more time to the first token on GPUs."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, stop) that one forward reads."""

    start: int
    stop: int
    is_last: bool
    """Whether this chunk's logits choose the first token of the answer."""

    @property
    def tokens(self) -> int:
        """How many tokens the chunk holds."""
        return self.stop - self.start


def plan_prefill(
    *,
    prompt_tokens: int,
    cached_tokens: int = 0,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    boundary: int | None = None,
) -> Iterator[PrefillChunk]:
    """Cut what the KV storage does not hold yet into chunks.

    Args:
        prompt_tokens: length of the prompt, 1 or more.
        cached_tokens: tokens whose KV is there already; at least one is always forwarded.
        chunk_tokens: most tokens of one chunk; 0 is one chunk for all but the last token.
        boundary: a position that some chunk must end at (the history boundary, where a
            snapshot is taken), ignored outside (cached_tokens, prompt_tokens - 1).
    """
    last = prompt_tokens - 1
    start = min(cached_tokens, last)
    edges = [last] if boundary is None or not start < boundary < last else [boundary, last]
    for edge in edges:
        while start < edge:
            stop = min(edge, start + chunk_tokens) if chunk_tokens > 0 else edge
            yield PrefillChunk(start, stop, is_last=False)
            start = stop
    yield PrefillChunk(last, prompt_tokens, is_last=True)


CHUNK_SECONDS = 0.5
"""A forward cannot be interrupted: this is how long a stop or another row may have to wait."""

INTERLEAVED_SECONDS = 0.1
"""The same for a chunk of a long prompt between steps of rows that decode: their next token, and
the first one of a request that comes meanwhile, wait for it."""

SMALLEST_CHUNK_TOKENS = 16


class PrefillPacer:
    """Sizes chunks by measured speed, so that none takes much longer than it may.

    Sizes are powers of two and change only when the measured one is out by more than a factor
    of two, so that equal prompts are cut alike from run to run; for an interleaved chunk a
    third too long is enough.

    Args:
        fixed_tokens: a size that is always used; 0 is one chunk a prompt; None: measure.
        first_tokens: the size before anything was measured.
    """

    def __init__(self, fixed_tokens: int | None = None, first_tokens: int = 256) -> None:
        self._fixed = fixed_tokens is not None
        self.chunk_tokens = first_tokens if fixed_tokens is None else fixed_tokens
        """Most prompt tokens of the next chunk, for `CHUNK_SECONDS`."""
        self.interleaved_tokens = self.chunk_tokens
        """The same for `INTERLEAVED_SECONDS`."""
        self._rate = self._interleaved_rate = 0.0
        """Tokens a second of the last chunk of each kind; 0: not known."""
        if not self._fixed:
            part = int(first_tokens * INTERLEAVED_SECONDS / CHUNK_SECONDS)
            self.interleaved_tokens = _power_of_two(part)

    @property
    def interleaved_share(self) -> float:
        """An interleaved chunk's time as a share of a whole one's, `CHUNK_SECONDS` at most."""
        if self._fixed:
            return 1.0
        if not self._interleaved_rate:
            return INTERLEAVED_SECONDS / CHUNK_SECONDS
        whole_s = self.chunk_tokens / (self._rate or self._interleaved_rate)
        interleaved_s = self.interleaved_tokens / self._interleaved_rate
        return min(1.0, interleaved_s / min(CHUNK_SECONDS, whole_s))

    def observe(self, tokens: int, elapsed_s: float, *, interleaved: bool = False) -> None:
        """Learn from a chunk; short ones say little about long ones and are left out.

        Args:
            tokens: of the chunk.
            elapsed_s: what it took.
            interleaved: it ran between decode steps, at `interleaved_tokens`; small chunks
                are slower, so they do not count for the others.
        """
        if self._fixed or elapsed_s <= 0:
            return
        rate = tokens / elapsed_s
        if not interleaved and tokens * 2 >= self.chunk_tokens:
            self._rate = rate
            self.chunk_tokens = _sized(self.chunk_tokens, rate * CHUNK_SECONDS)
        if tokens * 2 < self.interleaved_tokens:
            return
        if interleaved:
            self._interleaved_rate = rate
        if interleaved or not self._interleaved_rate:
            self.interleaved_tokens = _sized(
                self.interleaved_tokens, rate * INTERLEAVED_SECONDS, slack=4 / 3
            )


def _sized(size: int, affordable: float, slack: float = 2) -> int:
    """The size as it is, or what is affordable where that is much more, or less by ``slack``."""
    if size <= slack * affordable and affordable <= 2 * size:
        return size
    return _power_of_two(affordable)


def _power_of_two(affordable: float) -> int:
    size = SMALLEST_CHUNK_TOKENS
    while size * 2 <= min(affordable, PREFILL_CHUNK_TOKENS):
        size *= 2
    return size
