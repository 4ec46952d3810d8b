"""Log-probabilities of the model, for the rows that ask."""

import math

import mlx.core as mx
import numpy as np
import pytest

from engine.sampling.logprobs import (
    LOWEST_FLOAT,
    LogprobRows,
    finite,
    measure_logprobs,
    read_logprobs,
)

VOCAB = 60


def asking(*pairs: tuple[int, int]) -> LogprobRows:
    rows, top = zip(*pairs, strict=True)
    return LogprobRows(rows, top, mx.array(rows, mx.int32))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.float64)
    return exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))


def test_each_row_gets_its_own_count_of_alternatives() -> None:
    logits = np.random.default_rng(0).normal(size=(3, VOCAB)).astype(np.float32)
    rows = asking((0, 3), (2, 0))
    values = measure_logprobs(rows, mx.array(logits), mx.array([5, 6, 7]))
    read = read_logprobs(rows, [5, 6, 7], [np.array(value) for value in values])
    expected = log_softmax(logits)
    assert set(read) == {0, 2}
    assert read[0].chosen.token == 5
    assert read[0].chosen.logprob == pytest.approx(expected[0, 5], abs=1e-5)
    assert [one.token for one in read[0].top] == np.argsort(-logits[0])[:3].tolist()
    assert [one.logprob for one in read[0].top] == pytest.approx(
        np.sort(expected[0])[::-1][:3].tolist(), abs=1e-5
    )
    assert read[2].top == ()


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = mx.array(np.random.default_rng(0).normal(size=(1, VOCAB))).astype(mx.bfloat16)
    rows = asking((0, 1))
    (chosen, _, _) = measure_logprobs(rows, logits, mx.array([3]))
    exact = log_softmax(np.array(logits.astype(mx.float32)))
    assert chosen.dtype == mx.float32
    assert float(np.array(chosen)[0]) == pytest.approx(exact[0, 3], abs=1e-5)


def test_more_alternatives_than_tokens_gives_all() -> None:
    rows = asking((0, 20))
    values = measure_logprobs(rows, mx.zeros((1, 5)), mx.array([0]))
    read = read_logprobs(rows, [0], [np.array(value) for value in values])
    assert [one.token for one in read[0].top] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_what_is_not_finite_becomes_the_lowest_float(value: float) -> None:
    assert finite(value) == LOWEST_FLOAT
    assert float(np.float32(LOWEST_FLOAT)) == LOWEST_FLOAT


def test_a_logprob_is_never_above_zero_and_sums_to_one() -> None:
    logits = np.random.default_rng(1).normal(size=(1, 20)).astype(np.float32) * 5
    rows = asking((0, 20))
    values = measure_logprobs(rows, mx.array(logits), mx.array([0]))
    top = read_logprobs(rows, [0], [np.array(value) for value in values])[0].top
    assert all(one.logprob <= 1e-6 for one in top)
    assert sum(math.exp(one.logprob) for one in top) == pytest.approx(1, abs=1e-5)
