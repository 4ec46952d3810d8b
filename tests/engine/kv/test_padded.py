"""Forwards of several tokens for ragged rows: what is padded is never seen, riders least of all."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UnsupportedModel
from engine.kv.pool import CAPACITY_STEP, Pool
from engine.kv.ring import SLACK_TOKENS, RingLayer
from engine.kv.solo import Solo
from tests.engine.kv.rows import KINDS, WINDOW, Rows, assert_close, prompt

PADS = [kind for kind in KINDS if kind != "recurrent"]

every_kind = pytest.mark.parametrize("kind", PADS)


def held(layer, slot: int, tokens: int) -> list[np.ndarray]:
    """A row's entries of one attention layer, as far as it holds tokens."""
    last = tokens if layer.keys.shape[2] >= tokens else layer.keys.shape[2]
    return [np.array(array[slot, :, :last]) for array in layer.arrays()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_says_whether_it_pads(kind, models):
    assert Rows(kind, model=models[kind]).storage.pads == (kind in PADS)


def test_rows_that_stand_alone_do_not_pad():
    solo = Solo(list)
    assert not solo.pads
    with pytest.raises(UnsupportedModel), solo.padded({0: 1}):
        pass


@every_kind
@pytest.mark.parametrize(
    "lengths",
    [(5, 9, 3), (7, 7, 7), (WINDOW - 1, WINDOW, WINDOW + 1), (1, 2 * WINDOW, 30)],
    ids=["short", "equal", "around a window", "apart"],
)
def test_each_row_answers_as_it_does_alone_however_much_it_is_padded(kind, lengths, models):
    rows = Rows(kind, model=models[kind])
    slots = [rows.open(*prompt(length, salt)) for salt, length in enumerate(lengths)]
    alone = []
    for salt, length in enumerate(lengths):
        one = rows.another(kind)
        alone.append((one, one.open(*prompt(length, salt))))
    for at, widths in enumerate([(1, 4, 2), (6, 1, 1), (1, 1, 1), (3, 3, 3), (1, 5, 8)]):
        tokens = {
            slot: [(60 * at + 7 * i + slot) % 250 for i in range(width)]
            for slot, width in zip(slots, widths, strict=True)
        }
        answers = rows.padded(tokens, filler=77)
        for slot, (one, its) in zip(slots, alone, strict=True):
            assert_close(answers[slot], one.feed(its, *tokens[slot]))
            assert rows.storage.length(slot) == one.storage.length(its)


@every_kind
def test_what_is_fed_as_padding_changes_nothing_to_the_bit(kind, models):
    answers = []
    for filler in (0, 9):
        rows = Rows(kind, model=models[kind])
        first, second = rows.open(*prompt(20)), rows.open(*prompt(7, 1))
        answers.append([])
        for _ in range(3):
            answers[-1] += rows.padded({first: [3, 4, 5, 6], second: [7]}, filler=filler).values()
        answers[-1] += rows.step({first: 1, second: 2}).values()
    for one, two in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, two)


@every_kind
def test_k3_an_inactive_row_is_unchanged_to_the_bit_and_can_be_cut_back_as_before(kind, models):
    answers = []
    for busy in (False, True):
        rows = Rows(kind, model=models[kind])
        rider, other = rows.open(*prompt(90)), rows.open(*prompt(4, 1))
        rows.feed(rider, 8)
        if busy:
            for token in range(40, 45):
                rows.padded({other: [token] * 7}, filler=99)
            rows.padded({other: [9] * (SLACK_TOKENS - 1)})
        assert rows.storage.length(rider) == 91
        rows.storage.rewind(rider, 1)
        answers.append([rows.feed(rider, token) for token in (9, 8, 7)])
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("kind", ["dense", "window as a mask"])
def test_k3_not_a_bit_of_what_an_inactive_row_holds_is_written(kind, models):
    rows = Rows(kind, model=models[kind])
    rider, other = rows.open(*prompt(21)), rows.open(*prompt(4, 1))
    before = [held(layer, rider, 21) for layer in rows.storage._layers]
    rows.padded({other: [5, 6, 7]})
    after = [held(layer, rider, 21) for layer in rows.storage._layers]
    for one, two in zip(before, after, strict=True):
        for old, new in zip(one, two, strict=True):
            np.testing.assert_array_equal(old, new)


@every_kind
def test_k2_a_forward_that_raises_changes_no_length_and_no_later_answer(kind, models):
    rows, spared = Rows(kind, model=models[kind]), Rows(kind, model=models[kind])
    for one in (rows, spared):
        one.open(*prompt(20))
        one.open(*prompt(7, 1))
    with rows.falling_over(), pytest.raises(RuntimeError):
        rows.padded({0: [1, 2, 3], 1: [4]})
    assert [rows.storage.length(slot) for slot in (0, 1)] == [20, 7]
    after, clean = rows.step({0: 1, 1: 2}), spared.step({0: 1, 1: 2})
    for slot in (0, 1):
        np.testing.assert_array_equal(after[slot], clean[slot])


@every_kind
@pytest.mark.parametrize("spare", range(1, 6))
def test_padding_near_the_end_of_the_capacity_makes_room_first(kind, spare, models):
    rows = Rows(kind, model=models[kind])
    long = rows.open(*prompt(CAPACITY_STEP - spare))
    wide = rows.open(*prompt(3, 1))
    assert rows.storage.capacity == CAPACITY_STEP
    answers = rows.padded({long: [1], wide: [2, 3, 4, 5]})
    assert rows.storage.capacity == CAPACITY_STEP * (1 if spare > 3 else 2)
    for slot, (length, salt, tokens) in {
        long: (CAPACITY_STEP - spare, 0, [1]),
        wide: (3, 1, [2, 3, 4, 5]),
    }.items():
        one = rows.another(kind)
        assert_close(answers[slot], one.feed(one.open(*prompt(length, salt)), *tokens))


@pytest.mark.parametrize("kind", ["dense", "window as a mask"])
def test_k4_padding_is_zeroed_before_another_row_takes_the_slot(kind, models):
    rows = Rows(kind, model=models[kind])
    rows.open(*prompt(3))
    padded = rows.open(*prompt(7, 1))
    rows.padded({0: [1, 2, 3, 4, 5], padded: [6]})
    rows.storage.close(padded, failed=False)
    for layer in rows.storage._layers:
        for array in layer.arrays():
            assert not np.array(array[padded, :, 8:12]).any()


@settings(max_examples=30)
@given(
    starts=st.lists(st.integers(1, 200), min_size=2, max_size=3),
    rounds=st.lists(st.lists(st.integers(0, SLACK_TOKENS), min_size=3, max_size=3), max_size=5),
)
def test_ragged_rings_show_every_token_exactly_its_window(starts, rounds):
    layer = RingLayer(WINDOW)
    pool = Pool([layer], [layer])
    slots = [pool.open(8) for _ in starts]

    def append(forward, rows, width) -> tuple[mx.array, mx.array]:
        """Keys are names of positions: wrong ones are those of padding and of riders."""
        with forward:
            mask = layer.make_mask(width, return_array=True)
            new = mx.array(rows, mx.float32)[:, None, :, None] * mx.ones((len(rows), 1, width, 4))
            keys, _ = layer.update_and_fetch(new, new)
        return mx.broadcast_to(mask, (len(rows), 1, width, keys.shape[2]))[:, 0], keys[:, 0, :, 0]

    for slot, start in zip(slots, starts, strict=True):
        append(pool.one(slot, start), [list(range(start))], start)
    for widths in rounds:
        own = {slot: width for slot, width in zip(slots, widths, strict=False) if width}
        if not own:
            continue
        width = max(own.values())
        rows = [[-1.0] * width for _ in range(pool.rows)]
        for slot, tokens in own.items():
            at = pool.length(slot)
            rows[slot][:tokens] = range(at, at + tokens)
        before = {slot: pool.length(slot) for slot in own}
        mask, names = append(pool.padded(own), rows, width)
        for slot, tokens in own.items():
            for i in range(tokens):
                at = before[slot] + i
                seen = sorted(np.array(names[slot])[np.array(mask[slot, i])].tolist())
                assert seen == list(range(max(0, at - WINDOW + 1), at + 1))


def test_a_ring_refuses_a_forward_that_would_overwrite_what_its_rows_see():
    layer = RingLayer(WINDOW)
    pool = Pool([layer], [layer])
    first, second = pool.open(8), pool.open(8)
    widest = layer.ring - WINDOW + 1
    assert widest > SLACK_TOKENS
    with pool.padded({first: widest, second: 1}):
        pass
    with pytest.raises(AssertionError), pool.padded({first: widest + 1, second: 1}):
        pass


@every_kind
def test_padding_fits_where_it_needs_neither_capacity_nor_positions_of_its_own(kind, models):
    rows = Rows(kind, model=models[kind])
    long, wide = rows.open(*prompt(CAPACITY_STEP - 3)), rows.open(*prompt(3, 1))
    fits = rows.storage.padding_fits
    assert fits({long: 1, wide: 3}, 512)
    assert not fits({long: 1, wide: 4}, 512)
    assert not fits({wide: 4}, 512), "riders are padded, too"
    assert fits({long: 4, wide: 5}, 512), "the longest row needs that room itself"
    assert not fits({long: 1, wide: 3}, CAPACITY_STEP - 1)
    assert rows.storage.capacity == CAPACITY_STEP


def test_rows_that_stand_alone_have_no_room_for_padding():
    assert not Solo(list).padding_fits({0: 1}, 512)
