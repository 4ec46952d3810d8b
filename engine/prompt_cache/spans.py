"""KV of runs of tokens: parts of one, and one of many, as arrays of their own."""

from collections.abc import Sequence

import mlx.core as mx

from engine import guard
from engine.kv.storage import RowSnapshot


def part(kv: RowSnapshot, start: int = 0, stop: int | None = None) -> RowSnapshot:
    """A copy of the tokens [start, stop) of KV that can be cut; waits for the device.

    A view would keep all of the memory it is a part of. All of it is only computed, not copied.

    Raises:
        EvalFailed: the backend threw.
    """
    stop = kv.tokens if stop is None else stop
    if stop - start == kv.tokens:
        guard.evaluate([array for layer in kv.layers for array in layer])
        return kv
    layers = tuple(
        tuple(mx.contiguous(array[:, :, start:stop]) for array in layer) for layer in kv.layers
    )
    guard.evaluate([array for layer in layers for array in layer])
    return RowSnapshot(stop - start, layers)


def joined(spans: Sequence[RowSnapshot], tokens: int) -> RowSnapshot:
    """The first ``tokens`` tokens of spans that follow one another; lazy."""
    if len(spans) == 1:
        return spans[0].first(tokens)
    total = sum(span.tokens for span in spans)
    layers = tuple(
        tuple(mx.concatenate(list(arrays), axis=2) for arrays in zip(*layer, strict=True))
        for layer in zip(*(span.layers for span in spans), strict=True)
    )
    return RowSnapshot(total, layers).first(tokens)
