"""Where a cut falls: the smallest value that a rank or a probability mass still keeps.

Cuts are values, not positions: tokens that tie with the last kept one are all kept, so a cut does
not depend on the order of a sort and is the same on a few candidates and on the whole vocabulary.

On [R, V] no full sort is made. At V = 49,152 on a CPU a sort takes 4.0 ms a row and a partition
0.4 ms; a halving on the bits of the value costs one masked sum of 0.07 ms.
"""

import mlx.core as mx

PARTITION_RANK = 1280
"""Up to this rank a partition is cheaper than 32 counting passes (measured on a CPU)."""

ALL_BITS = range(31, -1, -1)

WEIGHT_BITS = range(29, 5, -1)
"""The bits of a float32 from 0 to 1, down to a relative difference of 2^-17.

Exponentials are no more exact than that, so finer cuts would only cost passes."""

NEGATIVE_BITS = range(30, 5, -1)
"""The ``order_bits`` of a float32 of at most 0, down to a relative difference of 2^-17."""

_SUM_WIDTH = 128
"""Columns of the two-step sum: it is three times as fast as a row sum on MLX's CPU backend."""

_SIGN = 0x80000000


def descending(values: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The ``count`` largest entries of each row, largest first, ties by lowest index.

    Args:
        values: float[R, V].
        count: how many, from 1 to V.

    Returns:
        float[R, count] and their indices int32[R, count]. Which of several entries that tie with
        the last one are among them is the backend's choice.
    """
    width = values.shape[-1]
    if count < width:
        part = mx.argpartition(values, width - count, axis=-1)[:, width - count :]
        # In id order, so that the stable sort below puts the lowest of equal ids first.
        ids = mx.sort(part.astype(mx.int32), axis=-1)
        values = mx.take_along_axis(values, ids, axis=-1)
        order = mx.argsort(-values, axis=-1)
        return (
            mx.take_along_axis(values, order, axis=-1),
            mx.take_along_axis(ids, order, axis=-1),
        )
    order = mx.argsort(-values, axis=-1).astype(mx.int32)
    return mx.take_along_axis(values, order, axis=-1), order


def order_bits(values: mx.array) -> mx.array:
    """uint32 of float32, in the same order: a larger value has larger bits."""
    bits = values.view(mx.uint32)
    return mx.where(bits >= _SIGN, ~bits, bits | _SIGN)


def mass_cut(
    bits: mx.array, weights: mx.array | None, limit: mx.array, *, among: range = ALL_BITS
) -> mx.array:
    """The largest cut whose entries at or above it weigh ``limit`` or more.

    Args:
        bits: uint32[R, V], larger is better (see ``order_bits``).
        weights: float32[R, V], not negative; None counts entries.
        limit: float32 or int32[R, 1].
        among: the bits that are searched, highest first. Those above must be 0 everywhere; those
            below are not compared: what differs from the last kept entry in them only is kept.

    Returns:
        uint32[R, 1]: keep the entries whose bits reach it. 0, which keeps all, when the whole
        row weighs less than the limit. An entry is kept exactly if those strictly better than it
        weigh less than the limit.
    """
    if weights is not None:
        bits, weights = _pad(bits), _pad(weights)
    cut = mx.zeros_like(bits[:, :1])
    for shift in among:
        trial = cut | (1 << shift)
        above = bits >= trial
        mass = _count(above) if weights is None else _sum(weights * above)
        cut = mx.where(mass >= limit, trial, cut)
    return cut


def rank_cut(values: mx.array, rank: mx.array, largest_rank: int) -> mx.array:
    """The value at a rank, of each row.

    Args:
        values: float32[R, V].
        rank: int32[R, 1], 1 is the largest value; 0 asks for no cut.
        largest_rank: no ``rank`` is above it; decides the method, not the result.

    Returns:
        bool[R, V]: whether an entry is at least as large as the one at the rank.
    """
    width = values.shape[-1]
    if largest_rank <= min(PARTITION_RANK, width):
        best = -mx.sort(-mx.topk(values, largest_rank, axis=-1), axis=-1)
        at_rank = mx.take_along_axis(best, mx.maximum(rank - 1, 0), axis=-1)
        return (values >= at_rank) | (rank == 0)
    bits = order_bits(values)
    return (bits >= mass_cut(bits, None, rank)) | (rank == 0)


def _pad(array: mx.array) -> mx.array:
    short = -array.shape[-1] % _SUM_WIDTH
    return mx.pad(array, [(0, 0), (0, short)]) if short else array


def _sum(array: mx.array) -> mx.array:
    return array.reshape(array.shape[0], -1, _SUM_WIDTH).sum(axis=1).sum(axis=-1, keepdims=True)


def _count(mask: mx.array) -> mx.array:
    return mask.sum(axis=-1, keepdims=True)
