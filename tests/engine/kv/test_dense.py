import mlx.core as mx
import pytest

from engine.kv.dense import DenseLayer
from engine.kv.pool import Pool

HEADS, DIM = 2, 4


def tokens(start: int, stop: int, rows: int = 1) -> mx.array:
    """Entries whose every number is their position; ``[rows, H, L, D]``."""
    at = mx.arange(start, stop, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(at, (rows, HEADS, stop - start, DIM))


def positions(array: mx.array, row: int = 0) -> list[int]:
    return [int(at) for at in array[row, 0, :, 0].tolist()]


def append(pool: Pool, layer: DenseLayer, slot: int, width: int) -> tuple[list[int], object]:
    """What one row's attention reads, and its mask."""
    start = pool.length(slot)
    with pool.one(slot, width):
        mask = layer.make_mask(width)
        keys, values = layer.update_and_fetch(
            tokens(start, start + width), tokens(start, start + width)
        )
        assert mx.array_equal(keys, values)
        assert layer.offset == start + width
    return positions(keys), mask


def dense(window: int | None = None) -> tuple[Pool, DenseLayer]:
    layer = DenseLayer(window)
    return Pool([layer], [layer]), layer


def test_a_row_reads_an_exact_slice_without_a_mask():
    pool, layer = dense()
    slot = pool.open(8)
    assert append(pool, layer, slot, 5) == ([0, 1, 2, 3, 4], "causal")
    assert append(pool, layer, slot, 1) == ([0, 1, 2, 3, 4, 5], None)


def test_a_window_skips_what_no_token_sees():
    pool, layer = dense(window=4)
    slot = pool.open(16)
    assert append(pool, layer, slot, 3) == ([0, 1, 2], "causal")
    assert append(pool, layer, slot, 1) == ([0, 1, 2, 3], None)
    assert append(pool, layer, slot, 1) == ([1, 2, 3, 4], None)
    read, mask = append(pool, layer, slot, 3)
    assert read == [2, 3, 4, 5, 6, 7]
    assert mask.tolist() == [
        [True, True, True, True, False, False],
        [False, True, True, True, True, False],
        [False, False, True, True, True, True],
    ]


def test_a_window_can_be_cut_back_to_any_length():
    pool, layer = dense(window=4)
    slot = pool.open(64)
    append(pool, layer, slot, 40)
    assert pool.rewind_limit(slot) is None
    pool.rewind(slot, 38)
    assert append(pool, layer, slot, 1)[0] == [0, 1, 2]


def test_a_mask_that_must_be_an_array_is_one():
    pool, layer = dense()
    slot = pool.open(8)
    with pool.one(slot, 3):
        assert layer.make_mask(3, return_array=True).tolist() == [
            [True, False, False],
            [True, True, False],
            [True, True, True],
        ]


def test_layers_that_share_kv_read_what_was_appended():
    pool, layer = dense()
    slot = pool.open(8)
    with pool.one(slot, 2):
        layer.update_and_fetch(tokens(0, 2), tokens(0, 2))
        keys, _ = layer.keys_and_values()
    assert positions(keys) == [0, 1]


def test_capacity_grows_without_losing_a_row():
    pool, layer = dense()
    slot = pool.open(1)
    append(pool, layer, slot, 200)
    append(pool, layer, slot, 100)
    assert append(pool, layer, slot, 1)[0] == list(range(301))
    assert pool.capacity % 256 == 0


def test_ragged_rows_write_at_their_own_ends():
    pool, layer = dense()
    first, second = pool.open(8), pool.open(8)
    append(pool, layer, first, 6)
    append(pool, layer, second, 2)
    with pool.all([first, second]):
        mask = layer.make_mask(1)
        new = mx.array([6.0, 2.0])[:, None, None, None] * mx.ones((2, HEADS, 1, DIM))
        keys, _ = layer.update_and_fetch(new, new)
    for slot, length in ((first, 7), (second, 3)):
        seen = [at for at, ok in enumerate(mask[slot, 0, 0].tolist()) if ok]
        assert seen == list(range(length))
        assert positions(keys, slot)[:length] == list(range(length))


def test_clearing_zeroes_a_row_and_no_other():
    pool, layer = dense()
    first, second = pool.open(8), pool.open(8)
    append(pool, layer, first, 3)
    append(pool, layer, second, 3)
    layer.clear(first)
    assert not layer.keys[first].any()
    assert not layer.values[first].any()
    assert positions(layer.keys, second)[:3] == [0, 1, 2]


def test_a_layer_is_read_only_inside_a_forward():
    with pytest.raises(AssertionError):
        DenseLayer().keys_and_values()
