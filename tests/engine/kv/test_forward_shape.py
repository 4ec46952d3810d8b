import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.forward_shape import ForwardShape


def view(start: int, width: int, capacity: int = 256) -> ForwardShape:
    return ForwardShape(
        slot=0, offsets=(start,), width=width, capacity=capacity, takes_part=(True,)
    )


def step(*offsets: int, capacity: int = 256) -> ForwardShape:
    return ForwardShape(
        slot=None,
        offsets=offsets,
        width=1,
        capacity=capacity,
        takes_part=(True,) * len(offsets),
    )


def test_one_row_reads_exactly_what_it_holds():
    forward = view(70, 5)
    assert (forward.start, forward.read_end) == (70, 75)
    assert (forward.offset, forward.next_offset) == (70, 75)
    assert forward.rows == slice(0, 1)


def test_rows_of_equal_length_count_as_one_length():
    forward = step(9, 9, 9)
    assert (forward.start, forward.offset, forward.next_offset) == (9, 9, 10)
    assert forward.rows == slice(None)


def test_ragged_rows_report_offsets_of_their_own_and_read_a_bucket():
    forward = step(3, 70, 0)
    assert forward.start is None
    assert forward.offset.tolist() == [3, 70, 0]
    assert forward.next_offset.tolist() == [4, 71, 1]
    assert forward.read_end == 128
    assert step(3, 120, capacity=124).read_end == 124


def test_a_long_row_that_rides_along_makes_no_step_of_others_longer():
    forward = ForwardShape(
        slot=None, offsets=(3, 70, 2000), width=2, capacity=2304, takes_part=(True, True, False)
    )
    assert forward.read_end == 128
    assert forward.causal_mask(0, None).shape == (3, 1, 2, 128)
    assert forward.positions.tolist()[2] == [[[2000], [2001]]]  # it is written to where it ends


def test_the_offset_a_family_read_before_the_update_stays_what_it_was():
    # mlx-lm#1097: an offset array that is mutated in place turns the wrong way.
    forward = step(3, 70)
    before = forward.offset
    assert forward.next_offset is not before
    assert before.tolist() == [3, 70]


@given(
    offsets=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    window=st.none() | st.integers(1, 40),
)
def test_the_mask_of_ragged_rows_is_causal_inside_the_window(offsets, window):
    forward = step(*offsets)
    mask = np.array(forward.causal_mask(0, window)).reshape(-1, forward.read_end)
    rows = [offsets[0]] if forward.start is not None else offsets
    for at, seen in zip(rows, mask, strict=True):
        expected = [key <= at and (window is None or key > at - window) for key in range(len(seen))]
        assert seen.tolist() == expected


@given(start=st.integers(0, 60), width=st.integers(1, 30), window=st.integers(1, 40))
def test_the_mask_of_a_wide_forward_is_causal_inside_the_window(start, width, window):
    forward = view(start, width)
    first = max(0, start + 1 - window)
    mask = np.array(forward.causal_mask(first, window))
    expected = [
        [at - window < key <= at for key in range(first, start + width)]
        for at in range(start, start + width)
    ]
    assert mask.tolist() == expected


@given(
    offsets=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    window=st.integers(1, 20),
    slack=st.integers(0, 20),
)
def test_a_ring_shows_exactly_the_window(offsets, window, slack):
    ring = window + slack
    mask = np.array(step(*offsets).ring_mask(ring, window)).reshape(len(offsets), ring)
    for at, seen in zip(offsets, mask, strict=True):
        visible = {position % ring for position in range(max(0, at - window + 1), at + 1)}
        assert {entry for entry in range(ring) if seen[entry]} == visible


def test_layers_of_a_forward_share_their_masks():
    forward = step(3, 70)
    assert forward.causal_mask(0, None) is forward.causal_mask(0, None)
    assert forward.causal_mask(0, None) is not forward.causal_mask(0, 16)
    assert forward.ring_mask(64, 16) is forward.ring_mask(64, 16)


@pytest.mark.parametrize("width", [1, 3])
def test_every_appended_token_has_a_position(width: int):
    forward = view(254, width, capacity=512)
    assert forward.positions.reshape(-1).tolist() == list(range(254, 254 + width))
    assert forward.ring_positions(255).reshape(-1).tolist() == [
        at % 255 for at in range(254, 254 + width)
    ]
    assert forward.positions.dtype == mx.int32
