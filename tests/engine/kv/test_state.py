import mlx.core as mx
import pytest

from engine.errors import RewindFailed, UnsupportedModel
from engine.kv.pool import Pool
from engine.kv.state import REWIND_TOKENS, StateLayer


class StateRows:
    """Rows whose state is the sum of what they were fed."""

    def __init__(self, rows: int = 1) -> None:
        self.layer = StateLayer(1)
        self.pool = Pool([self.layer], [self.layer])
        self.slots = [self.pool.open(8) for _ in range(rows)]

    def feed(self, slot: int, *values: float) -> None:
        with self.pool.one(slot, len(values)) as (cache,):
            before = mx.zeros((1, 3)) if cache[0] is None else cache[0]
            cache[0] = before + sum(values)

    def step(self, *slots: int, values: float = 1.0) -> None:
        with self.pool.all(slots) as (cache,):
            before = mx.zeros((self.pool.rows, 3)) if cache[0] is None else cache[0]
            cache[0] = before + values

    def state(self, slot: int) -> float:
        return self.layer._pool[0][slot, 0].item()


def test_a_new_row_starts_from_the_familys_own_zeros():
    rows = StateRows()
    with rows.pool.one(rows.slots[0], 1) as (cache,):
        assert cache[0] is None


def test_a_reused_slot_does_not_see_the_state_before_it():
    rows = StateRows(2)
    rows.feed(rows.slots[1], 5)
    rows.pool.close(rows.slots[1], failed=False)
    slot = rows.pool.open(8)
    assert slot == rows.slots[1]
    with rows.pool.one(slot, 1) as (cache,):
        assert cache[0] is None


def test_a_reused_slot_does_not_see_the_state_before_it_in_a_step_of_several_rows():
    # A prompt of one token has no forward of its own.
    rows = StateRows(2)
    rows.feed(rows.slots[0], 1)
    rows.feed(rows.slots[1], 5)
    rows.pool.close(rows.slots[1], failed=False)
    slot = rows.pool.open(8)
    rows.step(rows.slots[0], slot)
    assert (rows.state(rows.slots[0]), rows.state(slot)) == (2, 1)


def test_a_row_that_began_in_a_step_continues_alone_and_is_saved_as_any_other():
    rows = StateRows(2)
    first, second = rows.slots
    rows.step(first, second)
    rows.feed(first, 3)
    assert (rows.state(first), rows.state(second)) == (4, 1)
    other = StateRows()
    other.pool.load(0, rows.pool.save(second, 1))
    other.step(0)
    assert other.state(0) == 2


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_row_that_is_cut_back_to_nothing_starts_again(is_reused):
    rows = StateRows(2)
    first, second = rows.slots
    if is_reused:
        rows.feed(first, 7)
        rows.feed(second, 7)
        rows.pool.close(second, failed=False)
        second = rows.pool.open(8)
    rows.step(first, second)
    assert rows.pool.save(second, 0, 1).layers == ((),)
    rows.pool.rewind(second, 1)
    assert rows.pool.save(second, 0).layers == ((),)
    rows.step(second)
    assert rows.state(second) == 1
    rows.pool.rewind(second, 1)
    rows.feed(second, 4)
    assert rows.state(second) == 4


def test_one_and_two_appends_are_undone_exactly():
    for back in (1, 2):
        rows = StateRows(2)
        first, second = rows.slots
        rows.feed(first, 1, 2, 3)
        rows.feed(second, 10)
        for _ in range(3):
            rows.step(first, second)
        rows.pool.rewind(first, back)
        assert rows.state(first) == 6 + 3 - back
        assert rows.state(second) == 13
        assert rows.pool.length(first) == 6 - back


def test_what_was_undone_can_be_done_again():
    rows = StateRows()
    (slot,) = rows.slots
    rows.feed(slot, 1)
    rows.step(slot)
    rows.step(slot)
    rows.pool.rewind(slot, 1)
    rows.step(slot, values=100)
    assert rows.state(slot) == 102
    rows.pool.rewind(slot, 2)
    assert rows.state(slot) == 1


def test_three_appends_back_are_refused_and_change_nothing():
    rows = StateRows()
    (slot,) = rows.slots
    rows.feed(slot, 1)
    for _ in range(4):
        rows.step(slot)
    with pytest.raises(RewindFailed):
        rows.pool.rewind(slot, REWIND_TOKENS + 1)
    assert (rows.state(slot), rows.pool.length(slot)) == (5, 5)


def test_a_prompt_piece_cannot_be_undone_and_the_limit_says_so():
    rows = StateRows()
    (slot,) = rows.slots
    rows.feed(slot, 1, 2, 3)
    assert rows.pool.rewind_limit(slot) == 0
    with pytest.raises(RewindFailed):
        rows.pool.rewind(slot, 1)
    assert (rows.state(slot), rows.pool.length(slot)) == (6, 3)
    rows.step(slot)
    assert rows.pool.rewind_limit(slot) == 1


def test_a_row_that_rides_along_keeps_its_state_and_its_way_back():
    rows = StateRows(2)
    first, second = rows.slots
    rows.feed(first, 1)
    rows.feed(second, 10)
    rows.step(first, second)
    rows.step(second, values=5)
    assert rows.state(first) == 2
    rows.step(second, values=5)
    rows.pool.rewind(first, 1)
    assert rows.state(first) == 1
    assert rows.state(second) == 21


def test_a_forward_that_raises_leaves_the_state():
    rows = StateRows()
    (slot,) = rows.slots
    rows.feed(slot, 1)

    def failing_step() -> None:
        with rows.pool.all([slot]) as (cache,):
            cache[0] = cache[0] + 99
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        failing_step()
    assert (rows.state(slot), rows.pool.length(slot)) == (1, 1)


def test_growth_and_shrinking_carry_the_ways_back():
    rows = StateRows(2)
    first, second = rows.slots
    rows.feed(first, 1)
    rows.feed(second, 10)
    rows.step(first, second)
    third = rows.pool.open(8)
    rows.feed(third, 50)
    rows.step(second, third)
    rows.pool.close(first, failed=False)
    rows.pool.close(third, failed=False)
    assert rows.pool.fit() == [second]
    assert rows.state(0) == 12
    rows.pool.rewind(0, 2)
    assert rows.state(0) == 10


def test_a_saved_state_continues_elsewhere():
    rows = StateRows(2)
    rows.feed(rows.slots[1], 4)
    snapshot = rows.pool.save(rows.slots[1], 1)
    other = StateRows(3)
    other.feed(other.slots[0], 1)
    other.pool.load(other.slots[2], snapshot)
    other.step(*other.slots)
    assert other.state(other.slots[2]) == 5
    assert other.pool.length(other.slots[2]) == 2


def test_a_state_that_changes_its_shape_is_refused_by_name():
    rows = StateRows(2)
    rows.feed(rows.slots[0], 1)
    with (
        pytest.raises(UnsupportedModel, match="shape"),
        rows.pool.one(rows.slots[1], 1) as (cache,),
    ):
        cache[0] = mx.zeros((1, 4))
