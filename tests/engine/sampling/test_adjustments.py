"""Sparse changes to logits."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.adjustments import MOST_BIAS, adjust, adjustment, upload_adjustments

VOCAB = 40
biases = st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-50, 50, width=32), max_size=30)


@settings(deadline=None)
@given(rows=st.lists(biases, min_size=1, max_size=4))
def test_each_row_gets_its_own_biases(rows: list[dict[int, float]]) -> None:
    logits = np.random.default_rng(len(rows)).normal(size=(len(rows), VOCAB)).astype(np.float32)
    expected = logits.copy()
    for index, row in enumerate(rows):
        for token, value in row.items():
            expected[index, token] += np.float32(value)
    uploaded = upload_adjustments([adjustment(row) for row in rows])
    found = mx.array(logits) if uploaded is None else adjust(mx.array(logits), uploaded)
    np.testing.assert_array_equal(np.array(found), expected)


def test_nothing_to_adjust_uploads_nothing() -> None:
    assert adjustment({}) is None
    assert upload_adjustments([None, None]) is None


@pytest.mark.parametrize("logit", [math.inf, math.nan, 1.0])
@pytest.mark.parametrize("bias", [math.inf, 5.0])
def test_suppression_wins(logit: float, bias: float) -> None:
    uploaded = upload_adjustments([adjustment({3: bias}, {3})])
    assert uploaded is not None
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3] = logit
    assert np.array(adjust(mx.array(logits), uploaded))[0, 3] == -math.inf


def test_an_infinite_bias_is_large_but_finite() -> None:
    uploaded = upload_adjustments([adjustment({3: math.inf})])
    assert uploaded is not None
    found = np.array(adjust(mx.zeros((1, VOCAB)), uploaded))[0]
    assert found[3] == np.float32(MOST_BIAS)
