"""Sparse changes to logits: request bias, suppressed tokens, DRY.

A row's adjustment is a short list of ids with the value added to each; -inf suppresses, and wins
over any other value and over NaN and +inf logits.
"""

from collections.abc import Mapping, Sequence, Set

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.sampling.penalties import LEAST_SLOTS

MOST_BIAS = 1e30
"""Larger biases act as it: an infinite logit would make NaN of the others' probabilities."""

Adjustment = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Distinct ids and the value added to each."""

Uploaded = tuple[mx.array, mx.array]
"""int32[R, U] ids and float32[R, U] values of a batch."""


def adjustment(bias: Mapping[int, float], suppressed: Set[int] = frozenset()) -> Adjustment | None:
    """The adjustment of a bias map and a set of suppressed tokens; None when both are empty."""
    values = {token: min(value, MOST_BIAS) for token, value in bias.items()}
    values.update(dict.fromkeys(suppressed, -np.inf))
    if not values:
        return None
    ids = np.fromiter(values.keys(), np.int32, len(values))
    return ids, np.fromiter(values.values(), np.float32, len(values))


def upload_adjustments(rows: Sequence[Adjustment | None]) -> Uploaded | None:
    """The adjustments of a batch, padded to one width.

    Returns:
        int32[R, U] ids and float32[R, U] values; None when no row has any. Padding repeats a
        row's first entry, or adds 0 to token 0.
    """
    longest = max((len(row[0]) for row in rows if row is not None), default=0)
    if not longest:
        return None
    width = LEAST_SLOTS
    while width < longest:
        width *= 2
    ids = np.zeros((len(rows), width), np.int32)
    values = np.zeros((len(rows), width), np.float32)
    for index, row in enumerate(rows):
        if row is not None and len(row[0]):
            used = len(row[0])
            ids[index, :used], values[index, :used] = row
            ids[index, used:], values[index, used:] = row[0][0], row[1][0]
    return mx.array(ids), mx.array(values)


def adjust(logits: mx.array, adjustments: Uploaded) -> mx.array:
    """Logits with the uploaded adjustments added.

    Args:
        logits: float32[R, V].
        adjustments: what ``upload_adjustments`` gave.

    Returns:
        float32[R, V].
    """
    ids, values = adjustments
    before = mx.take_along_axis(logits, ids, axis=-1)
    # Every slot writes its final value, so repeated slots agree; a scatter-add would count twice.
    after = mx.where(values > -mx.inf, before + values, -mx.inf)
    return mx.put_along_axis(logits, ids, after, axis=-1)
