from hypothesis import given
from hypothesis import strategies as st

from engine.kv.pool import CAPACITY_STEP, ROW_BUCKETS, Pool
from engine.scheduler.budget import KvBudget, KvGeometry, KvShape

POOLED = KvGeometry(ROW_BUCKETS, CAPACITY_STEP)
OWN = KvGeometry(ROW_BUCKETS, CAPACITY_STEP, is_pooled=False)


def allocated(*tokens: int, shape: KvShape | None = None, shrinks: bool = False) -> int:
    return KvBudget(POOLED).allocated(tokens, shape or KvShape(), shrinks=shrinks)


def test_every_row_is_as_long_as_the_longest():
    assert allocated(10, 10, 200, 10) == 4 * 256


def test_rows_come_in_buckets():
    assert allocated(*[10] * 5) == 6 * 256


def test_what_is_allocated_already_counts():
    assert allocated(10, shape=KvShape(8, 1024)) == 8 * 1024


def test_a_pool_that_may_shrink_first_counts_the_rows_it_will_have():
    assert allocated(10, 10, shape=KvShape(8, 1024), shrinks=True) == 2 * 1024
    assert allocated(*[10] * 6, shape=KvShape(8, 1024), shrinks=True) == 8 * 1024


def test_rows_of_their_own_count_one_by_one():
    assert KvBudget(OWN).allocated([10, 300], KvShape()) == 256 + 512


def test_without_a_bound_everything_fits():
    assert KvBudget(POOLED).fits([10**9] * 100, KvShape())


def test_a_budget_is_kept_to_the_position():
    assert KvBudget(POOLED, 512).fits([200, 200], KvShape())
    assert not KvBudget(POOLED, 511).fits([200, 200], KvShape())


def test_nothing_always_fits():
    assert KvBudget(POOLED, 1).fits([], KvShape())


@given(st.integers(1, 5000), st.integers(1, 20000))
def test_the_longest_affordable_row_is_found(limit: int, positions: int):
    found = KvBudget(POOLED, positions).longest_row(limit)
    fitting = [n for n in range(1, limit + 1) if POOLED.positions_for(n) <= positions]
    assert found == max(fitting, default=0)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=9), st.data())
def test_no_growth_of_a_real_pool_passes_what_was_counted(tokens: list[int], data):
    """Rows of a pool grow in any order; the budget saw the largest it could become."""
    counted = allocated(*tokens)
    pool = Pool([], [])
    slots = [pool.open(1) for _ in tokens]
    held = dict.fromkeys(slots, 0)
    for _ in range(30):
        slot = data.draw(st.sampled_from(slots))
        most = tokens[slots.index(slot)]
        held[slot] = min(most, held[slot] + data.draw(st.integers(1, 400)))
        pool._reserve(held[slot])
    assert pool.rows * pool.capacity <= counted
