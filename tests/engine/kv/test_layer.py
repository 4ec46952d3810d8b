import mlx.core as mx

from engine.kv.layer import grown, widened
from engine.kv.storage import RowSnapshot


def test_growing_keeps_what_is_there_and_adds_zeros():
    array = mx.arange(2 * 3 * 4 * 2, dtype=mx.float32).reshape(2, 3, 4, 2)
    larger = grown(array, 7)
    assert larger.shape == (2, 3, 7, 2)
    assert mx.array_equal(larger[:, :, :4], array)
    assert not larger[:, :, 4:].any()
    assert grown(array, 4) is array
    assert grown(array, 2) is array


def test_widening_keeps_the_rows_it_is_given_in_their_order():
    array = mx.arange(6, dtype=mx.float32).reshape(3, 2)
    assert widened(array, None, 4).tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]
    assert widened(array, [2, 0], 2).tolist() == [[4, 5], [0, 1]]
    assert widened(array, [1], 3).tolist() == [[2, 3], [0, 0], [0, 0]]


def test_a_snapshot_counts_its_bytes():
    snapshot = RowSnapshot(2, ((mx.zeros((1, 2), mx.float32),), (), (mx.zeros(3, mx.float16),)))
    assert snapshot.nbytes == 8 + 6
    assert snapshot.overshoot == 0
