import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import RewindFailed
from engine.kv.pool import CAPACITY_STEP, ROW_BUCKETS
from tests.engine.kv.rows import KINDS, WINDOW, Rows, assert_close, prompt

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_k1_lengths_change_only_by_forwards_a_row_takes_part_in(kind, models):
    rows = Rows(kind, model=models[kind])
    slots = [rows.open(*prompt(5)), rows.open(*prompt(9)), rows.open(*prompt(3))]
    lengths = lambda: [rows.storage.length(slot) for slot in slots]  # noqa: E731
    assert lengths() == [5, 9, 3]
    rows.step({slots[0]: 1, slots[2]: 2})
    assert lengths() == [6, 9, 4]
    rows.feed(slots[1], 7)
    assert lengths() == [6, 10, 4]
    rows.storage.rewind(slots[0], 1)
    assert lengths() == [5, 10, 4]


@every_kind
@pytest.mark.parametrize("batched", [False, True])
def test_k2_a_forward_that_raises_changes_no_length_and_no_later_answer(kind, batched, models):
    rows = Rows(kind, model=models[kind])
    first, second = rows.open(*prompt(20)), rows.open(*prompt(7, 1))
    with rows.falling_over(), pytest.raises(RuntimeError):
        rows.step({first: 1, second: 2}) if batched else rows.feed(first, 1, 2, 3)
    assert [rows.storage.length(slot) for slot in (first, second)] == [20, 7]
    spared = rows.another(kind)
    spared.open(*prompt(20))
    spared.open(*prompt(7, 1))
    after, clean = rows.step({first: 1, second: 2}), spared.step({first: 1, second: 2})
    for slot in (first, second):
        np.testing.assert_array_equal(after[slot], clean[slot])


@every_kind
def test_k3_a_row_that_rides_along_is_unchanged_to_the_bit(kind, models):
    answers = []
    for busy in (False, True):
        rows = Rows(kind, model=models[kind])
        rider, other = rows.open(*prompt(30)), rows.open(*prompt(4, 1))
        if busy:
            for token in range(40, 45):
                rows.step({other: token})
            rows.feed(other, 1, 2, 3)
        answers.append([rows.feed(rider, token) for token in (9, 8, 7)])
    np.testing.assert_array_equal(*answers)


@every_kind
def test_k3_what_an_inactive_row_saved_before_is_what_it_saves_after(kind, models):
    rows = Rows(kind, model=models[kind])
    rider, other = rows.open(*prompt(8)), rows.open(*prompt(4, 1))
    before = rows.storage.save(rider, 8)
    mx.eval([array for layer in before.layers for array in layer])
    rows.step({other: 3})
    after = rows.storage.save(rider, 8)
    for old, new in zip(before.layers, after.layers, strict=True):
        for one, two in zip(old, new, strict=True):
            seen = slice(0, 8) if one.ndim == 4 and kind != "recurrent" else slice(None)
            np.testing.assert_array_equal(np.array(one)[:, :, seen], np.array(two)[:, :, seen])


@every_kind
def test_k4_nothing_of_a_failed_row_reaches_the_next_owner_of_its_slot(kind, models):
    rows = Rows(kind, model=models[kind])
    healthy, failed = rows.open(*prompt(40)), rows.open(*prompt(40, 1))
    for layer in rows.storage._layers:
        for array in layer.arrays():
            array[failed] = mx.full(array[failed].shape, mx.nan)
    assert np.isnan(rows.step({healthy: 1, failed: 2})[failed]).all()
    rows.storage.close(failed, failed=True)
    assert np.isfinite(rows.step({healthy: 3})[healthy]).all()
    assert rows.open(*prompt(3, 2)) == failed
    steps = rows.step({healthy: 4, failed: 5})
    assert np.isfinite(steps[healthy]).all()
    alone = rows.another(kind)
    assert_close(steps[failed], alone.feed(alone.open(*prompt(3, 2)), 5)[-1])


@every_kind
def test_ragged_rows_answer_as_each_does_alone(kind, models):
    rows = Rows(kind, model=models[kind])
    lengths = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 1)
    slots = [rows.open(*prompt(length, salt)) for salt, length in enumerate(lengths)]
    alone = []
    for salt, length in enumerate(lengths):
        one = rows.another(kind)
        alone.append((one, one.open(*prompt(length, salt))))
    for at in range(6):
        steps = rows.step({slot: 50 + slot + at for slot in slots})
        for slot, (one, its) in zip(slots, alone, strict=True):
            assert_close(steps[slot], one.feed(its, 50 + slot + at)[-1])


@every_kind
def test_one_row_in_a_pool_of_one_is_the_same_to_the_bit_however_it_is_asked(kind, models):
    rows, other = Rows(kind, model=models[kind]), Rows(kind, model=models[kind])
    slot = rows.open(*prompt(20))
    assert other.open(*prompt(20)) == slot
    for token in (5, 6, 7):
        np.testing.assert_array_equal(rows.step({slot: token})[slot], other.feed(slot, token)[-1])


@every_kind
def test_a_slot_is_reused_as_if_new(kind, models):
    rows = Rows(kind, model=models[kind])
    stays, goes = rows.open(*prompt(6)), rows.open(*prompt(50, 1))
    rows.step({stays: 1, goes: 2})
    rows.storage.close(goes, failed=False)
    assert rows.open(*prompt(6, 2)) == goes
    step = rows.step({stays: 3, goes: 4})[goes]
    alone = rows.another(kind)
    assert_close(step, alone.feed(alone.open(*prompt(6, 2)), 4)[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_closing_a_row_that_no_forward_wrote_to_touches_no_array(kind):
    # Nothing would compute what is built for it while the other rows wait for slow readers.
    rows = Rows(kind)
    rows.open(*prompt(5))
    rows.storage.close(rows.open(*prompt(3)), failed=True)
    for layer in rows.storage._layers:
        layer.clear = lambda *_: pytest.fail("cleared for nothing")
    for _ in range(3):
        rows.storage.close(rows.open(), failed=True)


@every_kind
def test_a_pool_grows_and_shrinks_around_its_rows(kind, models):
    rows = Rows(kind, model=models[kind])
    slots = [rows.open(*prompt(5 + salt, salt)) for salt in range(5)]
    assert rows.storage.rows == next(bucket for bucket in ROW_BUCKETS if bucket >= 5)
    kept = slots[3]
    for slot in slots:
        if slot != kept:
            rows.storage.close(slot, failed=False)
    assert rows.storage.fit() == [kept]
    assert rows.storage.rows == 1
    assert rows.storage.length(0) == 8
    alone = rows.another(kind)
    assert_close(rows.step({0: 9})[0], alone.feed(alone.open(*prompt(8, 3)), 9)[-1])


def test_a_pool_shrinks_only_when_it_halves(models):
    rows = Rows("dense", model=models["dense"])
    slots = [rows.open(1) for _ in range(4)]
    assert rows.storage.fit() is None
    rows.storage.close(slots[0], failed=False)
    assert rows.storage.fit() is None
    rows.storage.close(slots[1], failed=False)
    assert rows.storage.fit() == [2, 3]


@every_kind
def test_capacity_grows_under_rows_that_continue(kind, models):
    rows = Rows(kind, model=models[kind])
    long, short = rows.open(*prompt(CAPACITY_STEP - 1)), rows.open(*prompt(3, 1))
    alone = rows.another(kind)
    its = alone.open(*prompt(CAPACITY_STEP - 1))
    assert rows.storage.capacity == CAPACITY_STEP
    for token in (1, 2, 3):
        steps = rows.step({long: token, short: token})
        assert_close(steps[long], alone.feed(its, token)[-1])
    assert rows.storage.capacity == 2 * CAPACITY_STEP


def test_long_rows_grow_by_an_eighth(models):
    pool = Rows("dense", model=models["dense"]).storage
    pool.open(10 * CAPACITY_STEP)
    pool._reserve(10 * CAPACITY_STEP + 1)
    assert pool.capacity == 12 * CAPACITY_STEP


@every_kind
def test_an_idle_pool_holds_no_memory(kind, models):
    rows = Rows(kind, model=models[kind])
    slots = [rows.open(*prompt(5)) for _ in range(3)]
    assert rows.storage.arrays()
    for slot in slots:
        rows.storage.close(slot, failed=False)
    assert rows.storage.arrays() == []
    assert (rows.storage.rows, rows.storage.capacity) == (1, 0)


@every_kind
def test_an_append_that_is_cut_off_leaves_no_trace(kind, models):
    rows = Rows(kind, model=models[kind])
    first, second = rows.open(*prompt(40)), rows.open(*prompt(9, 1))
    rows.step({first: 1, second: 2})
    rows.step({first: 99, second: 99})
    rows.step({first: 98, second: 3})
    rows.storage.rewind(first, 2)
    again = rows.step({first: 5, second: 4})
    clean = rows.another(kind)
    first, second = clean.open(*prompt(40)), clean.open(*prompt(9, 1))
    clean.step({first: 1, second: 2})
    clean.step({second: 99})
    clean.step({second: 3})
    untouched = clean.step({first: 5, second: 4})
    for slot in (first, second):
        np.testing.assert_array_equal(again[slot], untouched[slot])


@every_kind
def test_a_refused_rewind_leaves_the_row_as_it_was(kind, models):
    answers = []
    for refused in (False, True):
        rows = Rows(kind, model=models[kind])
        slot = rows.open(*prompt(200 if kind == "ring" else 12))
        rows.step({slot: 1})
        if refused:
            length = rows.storage.length(slot)
            limit = rows.storage.rewind_limit(slot)
            with pytest.raises(RewindFailed):
                rows.storage.rewind(slot, (length if limit is None else limit) + 1)
            assert rows.storage.length(slot) == length
            assert rows.storage.rewind_limit(slot) == limit
        answers.append(rows.step({slot: 2})[slot])
    np.testing.assert_array_equal(*answers)


@every_kind
def test_a_row_saved_here_continues_in_another_pool_to_the_bit(kind, models):
    rows = Rows(kind, model=models[kind])
    rows.open(*prompt(3))
    slot = rows.open(*prompt(30, 1))
    snapshot = rows.storage.save(slot, 30)
    assert snapshot.tokens == 30
    assert snapshot.nbytes == sum(a.nbytes for layer in snapshot.layers for a in layer) > 0
    other = rows.another(kind)
    other.open(*prompt(7, 2))
    target = other.open()
    other.storage.load(target, snapshot)
    assert other.storage.length(target) == 30
    answer = other.feed(target, 8)
    np.testing.assert_array_equal(answer, rows.feed(slot, 8))
    # What either row does afterwards changes no snapshot.
    again = rows.another(kind)
    target = again.open()
    again.storage.load(target, snapshot)
    np.testing.assert_array_equal(again.feed(target, 8), answer)


@pytest.mark.parametrize("kind", ["dense", "window as a mask"])
def test_a_row_that_can_be_cut_is_saved_as_short_as_asked(kind, models):
    rows = Rows(kind, model=models[kind])
    slot = rows.open(*prompt(30))
    snapshot = rows.storage.save(slot, 12)
    assert snapshot.tokens == 12
    other = rows.another(kind)
    target = other.open()
    other.storage.load(target, snapshot)
    clean = rows.another(kind)
    expected = clean.feed(clean.open(*prompt(12)), 5)
    np.testing.assert_array_equal(other.feed(target, 5), expected)


@pytest.mark.parametrize("kind", ["ring", "recurrent"])
def test_a_row_that_cannot_be_cut_is_saved_whole_and_says_so(kind, models):
    rows = Rows(kind, model=models[kind])
    slot = rows.open(*prompt(30))
    assert rows.storage.save(slot, 12).tokens == 30


actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(1, 40)),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.sets(st.integers(0, 9), min_size=1)),
        st.tuples(st.just("rewind"), st.integers(0, 9)),
        st.tuples(st.just("fit"), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=40)
@pytest.mark.parametrize("kind", KINDS)
@given(actions=actions)
def test_whatever_the_rows_do_each_answers_as_it_would_alone(kind, actions, models):
    rows = Rows(kind, model=models[kind])
    held: dict[int, list[int]] = {}
    stepped: dict[int, int] = {}
    for salt, (action, what) in enumerate(actions):
        slots = sorted(held)
        picked = slots[what % len(slots)] if slots and isinstance(what, int) else None
        if action == "open":
            tokens = list(prompt(what, salt))
            slot = rows.open(*tokens)
            held[slot], stepped[slot] = tokens, 0
        elif action == "close" and picked is not None:
            rows.storage.close(picked, failed=salt % 2 == 0)
            del held[picked]
        elif action == "step" and slots:
            part = sorted({slots[index % len(slots)] for index in what})
            rows.step({slot: (salt + slot) % 200 for slot in part})
            for slot in part:
                held[slot] = [*held[slot], (salt + slot) % 200]
                stepped[slot] += 1
        elif action == "rewind" and picked is not None and stepped[picked]:
            rows.storage.rewind(picked, 1)
            held[picked] = held[picked][:-1]
            stepped[picked] = 0  # a recurrent row may have no other way back
        elif action == "fit" and slots and (moved := rows.storage.fit()) is not None:
            held = {new: held[old] for new, old in enumerate(moved) if old in held}
            stepped = {new: stepped[old] for new, old in enumerate(moved) if old in stepped}
    assert {slot: rows.storage.length(slot) for slot in held} == {
        slot: len(tokens) for slot, tokens in held.items()
    }
    if held:
        steps = rows.step(dict.fromkeys(held, 3))
        for slot, tokens in held.items():
            alone = rows.another(kind)
            assert_close(steps[slot], alone.feed(alone.open(*tokens), 3)[-1])
