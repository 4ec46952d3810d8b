import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RewindFailed
from engine.kv.pool import Pool
from engine.kv.ring import SLACK_TOKENS, RingLayer

WINDOW = 16
HEADS, DIM = 2, 4


class RingRow:
    """One row of a ring; it checks that each token sees exactly its window."""

    def __init__(self) -> None:
        self.layer = RingLayer(WINDOW)
        self.pool = Pool([self.layer], [self.layer])
        self.slot = self.pool.open(8)
        self.shift = 0

    def append(self, width: int) -> None:
        start = self.pool.length(self.slot)
        # What a rewound append leaves must differ from what is written in its place.
        self.shift += 1000
        names = [self.shift + at for at in range(start, start + width)]
        self.written = {at: name for at, name in getattr(self, "written", {}).items() if at < start}
        self.written.update(zip(range(start, start + width), names, strict=True))
        new = mx.array(names, mx.float32)[None, None, :, None] * mx.ones((1, HEADS, 1, DIM))
        with self.pool.one(self.slot, width):
            mask = self.layer.make_mask(width, return_array=True)
            keys, values = self.layer.update_and_fetch(new, new)
            assert mx.array_equal(keys, values)
            assert mx.array_equal(self.layer.keys_and_values()[0], keys)
        read = [int(name) for name in keys[0, 0, :, 0].tolist()]
        rows = mask.reshape(-1, len(read)).tolist()
        for at, sees in zip(range(start, start + width), rows, strict=True):
            seen = {name for name, ok in zip(read, sees, strict=True) if ok}
            window = range(max(0, at - WINDOW + 1), at + 1)
            assert seen == {self.written[position] for position in window}


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_every_token_sees_exactly_its_window(widths):
    row = RingRow()
    for width in widths:
        row.append(width)


@given(
    widths=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    cuts=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 90)), max_size=4),
)
def test_rewinds_within_the_limit_lose_nothing_that_is_seen_again(widths, cuts):
    row = RingRow()
    for width in widths:
        row.append(width)
    for back, width in cuts:
        limit = min(row.pool.rewind_limit(row.slot), row.pool.length(row.slot))
        row.pool.rewind(row.slot, min(back, limit))
        row.append(width)


def test_a_rewind_of_exactly_the_slack_is_possible_and_one_more_is_refused():
    row = RingRow()
    row.append(300)
    limit = row.pool.rewind_limit(row.slot)
    assert limit == row.layer.ring - WINDOW >= SLACK_TOKENS
    with pytest.raises(RewindFailed, match=str(limit)):
        row.pool.rewind(row.slot, limit + 1)
    assert row.pool.length(row.slot) == 300
    row.pool.rewind(row.slot, limit)
    assert row.pool.rewind_limit(row.slot) == 0
    row.append(1)


def test_the_slack_is_not_given_twice():
    row = RingRow()
    row.append(300)
    row.pool.rewind(row.slot, 30)
    left = row.pool.rewind_limit(row.slot)
    assert left == row.layer.ring - WINDOW - 30
    with pytest.raises(RewindFailed):
        row.pool.rewind(row.slot, left + 1)
    row.append(10)
    assert row.pool.rewind_limit(row.slot) == left + 10


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
def test_prompts_of_about_the_window_then_single_tokens(length: int):
    row = RingRow()
    row.append(length)
    for _ in range(3):
        row.append(1)


def test_ragged_rings_write_at_their_own_ends():
    layer = RingLayer(WINDOW)
    pool = Pool([layer], [layer])
    slots = [pool.open(8), pool.open(8)]
    for slot, width in zip(slots, (100, 7), strict=True):
        with pool.one(slot, width):
            at = mx.arange(width, dtype=mx.float32)[None, None, :, None]
            layer.update_and_fetch(*(mx.broadcast_to(at, (1, HEADS, width, DIM)),) * 2)
    with pool.all(slots):
        mask = layer.make_mask(1)
        new = mx.array([100.0, 7.0])[:, None, None, None] * mx.ones((2, HEADS, 1, DIM))
        keys, _ = layer.update_and_fetch(new, new)
    for slot, length in zip(slots, (101, 8), strict=True):
        sees, names = mask[slot, 0, 0].tolist(), keys[slot, 0, :, 0].tolist()
        seen = sorted(int(name) for name, ok in zip(names, sees, strict=True) if ok)
        assert seen == list(range(max(0, length - WINDOW), length))


def test_a_saved_row_may_be_cut_back_no_further_than_the_original():
    row = RingRow()
    row.append(300)
    row.pool.rewind(row.slot, 30)
    limit = row.pool.rewind_limit(row.slot)
    snapshot = row.pool.save(row.slot, 270)
    other = Pool([RingLayer(WINDOW)], [None])
    slot = other.open(8)
    other.load(slot, snapshot)
    assert other.length(slot) == 270
    assert other.rewind_limit(slot) <= limit


@pytest.mark.parametrize("window", [1, 16, 62, 63, 64, 128, 1000])
def test_the_longest_verify_round_can_be_cut_off_with_a_step_in_flight(window: int):
    longest_draft = 64
    assert RingLayer(window).rewind_limit(0, 0) >= longest_draft + 1 + 1
