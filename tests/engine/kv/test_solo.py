from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine.errors import RewindFailed, UnsupportedModel
from engine.kv.choose import fresh_caches
from engine.kv.solo import Solo
from tests.engine.rigs import tiny_model

WINDOW = 16


class SoloRows:
    """A model whose rows have mlx-lm's own caches."""

    def __init__(self, family: str) -> None:
        self.model: Any = tiny_model(family)
        self.storage = Solo(lambda: fresh_caches(self.model))

    def feed(self, slot: int, *tokens: int) -> np.ndarray:
        with self.storage.one(slot, len(tokens)) as caches:
            return np.array(self.model(mx.array([tokens]), cache=caches)[0])


def test_slots_are_the_lowest_free_ones():
    storage = SoloRows("llama").storage
    assert [storage.open(1) for _ in range(3)] == [0, 1, 2]
    storage.close(1, failed=False)
    assert storage.open(1) == 1
    assert storage.rows == 3
    assert storage.fit() is None


def test_rows_know_nothing_of_each_other():
    rows = SoloRows("llama")
    first, second = rows.storage.open(8), rows.storage.open(8)
    rows.feed(first, 1, 2, 3)
    rows.feed(second, 9)
    assert [rows.storage.length(slot) for slot in (first, second)] == [3, 1]
    alone = SoloRows("llama")
    slot = alone.storage.open(8)
    alone.feed(slot, 1, 2, 3)
    np.testing.assert_array_equal(rows.feed(first, 4), alone.feed(slot, 4))


def test_a_step_of_one_row_is_a_forward_of_one_token():
    rows = SoloRows("llama")
    slot = rows.storage.open(8)
    with rows.storage.all([slot]) as caches:
        rows.model(mx.array([[5]]), cache=caches)
    assert rows.storage.length(slot) == 1


def test_full_caches_are_cut_back_anywhere():
    rows = SoloRows("llama")
    slot = rows.storage.open(8)
    rows.feed(slot, *range(10))
    assert rows.storage.rewind_limit(slot) is None
    rows.storage.rewind(slot, 7)
    answer = rows.feed(slot, 50)
    clean = SoloRows("llama")
    slot = clean.storage.open(8)
    clean.feed(slot, 0, 1, 2)
    np.testing.assert_array_equal(answer, clean.feed(slot, 50))
    with pytest.raises(RewindFailed):
        rows.storage.rewind(0, 100)


@pytest.mark.parametrize("family", ["hybrid", "gemma3"])
@pytest.mark.parametrize("length", [1, WINDOW - 2, WINDOW - 1, WINDOW, 2 * WINDOW])
def test_the_newest_append_can_be_undone_in_every_family(family: str, length: int):
    rows = SoloRows(family)
    slot = rows.storage.open(8)
    prompt = [at % 200 for at in range(length)]
    rows.feed(slot, *prompt)
    rows.feed(slot, 99)
    assert rows.storage.rewind_limit(slot) != 0
    rows.storage.rewind(slot, 1)
    assert rows.storage.length(slot) == length
    answer = rows.feed(slot, 50)
    clean = SoloRows(family)
    clean.storage.open(8)
    clean.feed(slot, *prompt)
    np.testing.assert_array_equal(answer, clean.feed(slot, 50))


def test_a_refused_rewind_leaves_the_row_as_it_was():
    rows = SoloRows("hybrid")
    slot = rows.storage.open(8)
    for token in (1, 2, 3):
        rows.feed(slot, token)
    assert rows.storage.rewind_limit(slot) == 1
    with pytest.raises(RewindFailed):
        rows.storage.rewind(slot, 2)
    assert rows.storage.length(slot) == 3
    rows.storage.rewind(slot, 0)
    assert rows.storage.length(slot) == 3


def test_a_forward_that_raises_changes_no_length():
    rows = SoloRows("hybrid")
    slot = rows.storage.open(8)
    rows.feed(slot, 1)

    def failing() -> None:
        with rows.storage.one(slot, 2) as caches:
            rows.model(mx.array([[5, 6]]), cache=caches)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        failing()
    assert rows.storage.length(slot) == 1
    clean = SoloRows("hybrid")
    clean.storage.open(8)
    clean.feed(slot, 1)
    np.testing.assert_array_equal(rows.feed(slot, 7), clean.feed(slot, 7))


def test_a_closed_row_holds_no_memory():
    rows = SoloRows("hybrid")
    slots = [rows.storage.open(8) for _ in range(2)]
    for slot in slots:
        rows.feed(slot, 1, 2)
    assert rows.storage.arrays()
    rows.storage.close(slots[0], failed=True)
    rows.storage.reset()
    assert rows.storage.arrays() == []


def test_rows_cannot_be_taken_out_or_put_in():
    rows = SoloRows("llama")
    slot = rows.storage.open(8)
    with pytest.raises(UnsupportedModel):
        rows.storage.save(slot, 0)


def test_a_forward_that_raises_half_way_is_cut_off_full_caches():
    rows = SoloRows("llama")
    slot = rows.storage.open(8)
    rows.feed(slot, 1, 2)
    head = rows.model.lm_head
    rows.model.lm_head = None
    with pytest.raises(TypeError):
        rows.feed(slot, 5, 6, 7)
    rows.model.lm_head = head
    clean = SoloRows("llama")
    clean.storage.open(8)
    clean.feed(slot, 1, 2)
    np.testing.assert_array_equal(rows.feed(slot, 7), clean.feed(slot, 7))


@pytest.mark.parametrize(("length", "limit"), [(4, 0), (WINDOW, 0), (40, 0)])
def test_no_draft_may_run_into_a_rotating_window(length: int, limit: int):
    rows = SoloRows("gemma3")
    slot = rows.storage.open(8)
    rows.feed(slot, *[at % 200 for at in range(length)])
    assert rows.storage.draft_limit(slot) == limit


def test_full_caches_take_any_draft():
    rows = SoloRows("llama")
    slot = rows.storage.open(8)
    rows.feed(slot, 1, 2, 3)
    assert rows.storage.draft_limit(slot) is None
