"""Parts and joins are bitwise the KV they are of."""

import mlx.core as mx
import pytest

from engine.kv.storage import RowSnapshot
from engine.prompt_cache.spans import joined, part


def kv(tokens: int) -> RowSnapshot:
    """Two layers with KV, and one without between them."""
    layers = [
        tuple(mx.random.normal((1, 2, tokens, 4)) for _ in "kv") if layer != 1 else ()
        for layer in range(3)
    ]
    return RowSnapshot(tokens, tuple(layers))


def same(one: RowSnapshot, other: RowSnapshot) -> bool:
    pairs = zip(one.layers, other.layers, strict=True)
    return one.tokens == other.tokens and all(
        bool(mx.array_equal(a, b)) for x, y in pairs for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_two_parts_joined_are_the_whole(cut):
    whole = kv(10)
    assert same(joined([part(whole, 0, cut), part(whole, cut, 10)], 10), whole)


def test_a_join_can_end_inside_its_last_run():
    whole = kv(10)
    assert same(joined([part(whole, 0, 4), part(whole, 4, 10)], 7), whole.first(7))
    assert same(joined([whole], 3), whole.first(3))


def test_parts_take_together_what_the_whole_took():
    whole = kv(10)
    assert part(whole, 0, 3).nbytes + part(whole, 3, 10).nbytes == whole.nbytes
