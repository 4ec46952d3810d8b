"""Log-probabilities under the model, before the sampling chain, for the rows that want them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.outcome import TokenLogprob, TokenLogprobs
from engine.sampling.thresholds import descending

LOWEST_FLOAT = -3.4028234663852886e38
"""The lowest finite float32: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Which rows of a batch want logprobs, and how many alternatives."""

    rows: tuple[int, ...]
    top: tuple[int, ...]
    """Alternatives each of ``rows`` wants."""
    index: mx.array
    """int32[A]: ``rows`` on the device."""

    @property
    def widest(self) -> int:
        """The most alternatives any row wants."""
        return max(self.top)


def measure_logprobs(
    wanted: LogprobRows, logits: mx.array, tokens: mx.array
) -> tuple[mx.array, ...]:
    """Lazy log-probabilities of those rows.

    Args:
        wanted: which rows.
        logits: float[R, V], untouched by the chain; any dtype.
        tokens: int32[R], what was drawn.

    Returns:
        float32[A] of the drawn tokens; with alternatives also float32[A, N] and int32[A, N], best
        first.
    """
    if len(wanted.rows) < logits.shape[0]:
        logits, tokens = logits[wanted.index], tokens[wanted.index]
    # A log-softmax in half precision loses the small differences.
    logits = logits.astype(mx.float32)
    norm = mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = (mx.take_along_axis(logits, tokens[:, None], axis=-1) - norm).squeeze(-1)
    count = min(wanted.widest, logits.shape[-1])
    if not count:
        return (chosen,)
    values, ids = descending(logits, count)
    return chosen, values - norm, ids


def read_logprobs(
    wanted: LogprobRows, tokens: Sequence[int], values: Sequence[Sequence[Any]]
) -> dict[int, TokenLogprobs]:
    """The logprobs as plain values.

    Args:
        wanted: as given to ``measure_logprobs``.
        tokens: what was drawn, of all rows.
        values: the arrays ``measure_logprobs`` gave, read: nested lists or NumPy arrays.

    Returns:
        By row of the batch.
    """
    read: dict[int, TokenLogprobs] = {}
    for slot, (row, top) in enumerate(zip(wanted.rows, wanted.top, strict=True)):
        best: tuple[TokenLogprob, ...] = ()
        if top and len(values) > 1:
            pairs = zip(values[2][slot][:top], values[1][slot][:top], strict=True)
            best = tuple(TokenLogprob(int(token), finite(value)) for token, value in pairs)
        chosen = TokenLogprob(int(tokens[row]), finite(values[0][slot]))
        read[row] = TokenLogprobs(chosen, best)
    return read


def finite(value: float) -> float:
    """``value`` as a float that JSON can carry: what is not finite becomes the lowest float32."""
    number = float(value)
    return number if LOWEST_FLOAT <= number <= -LOWEST_FLOAT else LOWEST_FLOAT
