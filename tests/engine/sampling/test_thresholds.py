"""Cuts against sorting."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.thresholds import (
    NEGATIVE_BITS,
    PARTITION_RANK,
    WEIGHT_BITS,
    descending,
    mass_cut,
    order_bits,
    rank_cut,
)

few_values = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=40)


@given(values=few_values, data=st.data())
def test_descending_is_sorted_and_breaks_ties_by_lowest_index(
    values: list[float], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(values)))
    best, ids = descending(mx.array([values]), count)
    found = np.array(ids)[0].tolist()
    assert np.array(best)[0].tolist() == sorted(values, reverse=True)[:count]
    assert [values[i] for i in found] == np.array(best)[0].tolist()
    assert found == sorted(found, key=lambda i: (-values[i], i))


@given(values=st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=2, max_size=50))
def test_order_bits_keep_the_order(values: list[float]) -> None:
    bits = np.array(order_bits(mx.array(values)))
    exact = np.array(values, np.float32)
    for i in range(len(values) - 1):
        assert (exact[i] < exact[i + 1]) <= (bits[i] < bits[i + 1])


@settings(deadline=None)
@given(values=few_values, data=st.data())
@pytest.mark.parametrize("partition", [True, False])
def test_a_rank_cut_keeps_the_best_and_what_ties_with_the_last(
    values: list[float], data: st.DataObject, partition: bool
) -> None:
    rank = data.draw(st.integers(0, len(values)))
    largest = len(values) if partition else PARTITION_RANK + 1
    kept = np.array(rank_cut(mx.array([values]), mx.array([[rank]], mx.int32), largest))[0]
    last = sorted(values, reverse=True)[rank - 1] if rank else -np.inf
    assert kept.tolist() == [value >= last for value in values]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    size=st.sampled_from([1, 5, 127, 128, 129, 700]),
    share=st.floats(0.001, 0.999),
)
def test_a_mass_cut_keeps_what_has_less_than_the_limit_above_it(
    seed: int, size: int, share: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=size) * 3
    weights = np.exp(logits - logits.max()).astype(np.float32)
    order = np.argsort(-weights)
    before = np.concatenate([[0.0], np.cumsum(weights[order].astype(np.float64))[:-1]])
    total = weights.astype(np.float64).sum()
    decided = np.abs(before - share * total) > 1e-4 * total
    array = mx.array(weights)[None]
    limit = mx.array([[share * total]], mx.float32)
    cut = mass_cut(array.view(mx.uint32), array, limit, among=WEIGHT_BITS)
    kept = np.array(array.view(mx.uint32) >= cut)[0][order]
    assert (kept == (before < share * total))[decided].all()


def test_a_mass_that_is_never_reached_keeps_all() -> None:
    weights = mx.array([[1.0, 0.5, 0.0]])
    cut = mass_cut(weights.view(mx.uint32), weights, mx.array([[3.0]]), among=WEIGHT_BITS)
    assert int(np.array(cut)[0, 0]) == 0


def test_the_searched_bits_are_those_that_occur() -> None:
    ones = (1 << (WEIGHT_BITS[0] + 1)) - 1
    assert int(np.array(mx.array([1.0]).view(mx.uint32))[0]) <= ones
    ones = (1 << (NEGATIVE_BITS[0] + 1)) - 1
    assert int(np.array(order_bits(mx.array([-0.0])))[0]) <= ones
