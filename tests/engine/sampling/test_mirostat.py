"""Mirostat's truncation and feedback against the paper's formulas."""

import math

import mlx.core as mx
import numpy as np
import pytest

from engine.sampling.mirostat import BEST_TOKENS, first_mu, mirostat_keep, next_mu

VOCAB = 2000


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def kept(logits: np.ndarray, mu: float, version: int) -> np.ndarray:
    array = mx.array(logits.astype(np.float32))[None]
    mask = mirostat_keep(
        array, mx.array([[mu]]), mx.array([[version]], mx.int32), with_v1=version == 1
    )
    return np.array(mask)[0]


@pytest.mark.parametrize("mu", [0.5, 3.0, 8.0, 30.0])
def test_version_2_drops_what_is_more_surprising_than_the_bound(mu: float) -> None:
    logits = np.random.default_rng(0).normal(size=VOCAB) * 2
    surprise = -log_softmax(logits) / math.log(2)
    expected = surprise <= mu
    expected[logits.argmax()] = True
    assert kept(logits, mu, 2).tolist() == expected.tolist()


@pytest.mark.parametrize("mu", [0.5, 3.0, 8.0, 10.0])
def test_version_1_keeps_the_rank_its_zipf_fit_gives(mu: float) -> None:
    logits = np.random.default_rng(0).normal(size=VOCAB) * 2
    best = np.sort(np.exp(log_softmax(logits)))[::-1][:BEST_TOKENS]
    index = np.arange(1, BEST_TOKENS)
    ratio = np.log((index + 1) / index)
    exponent = (ratio * np.log(best[:-1] / best[1:])).sum() / (ratio**2).sum()
    excess = exponent - 1
    rank = ((excess * 2**mu) / (1 - float(VOCAB) ** -excess)) ** (1 / exponent)
    assert kept(logits, mu, 1).sum() == max(int(rank), 1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_extreme_logits_keep_at_least_the_best(version: int) -> None:
    logits = np.full(VOCAB, -np.inf)
    logits[[4, 9]] = [0.0, -90.0]
    assert kept(logits, 1.0, version)[4]


def test_flat_logits_have_a_finite_rank() -> None:
    assert 1 <= kept(np.zeros(VOCAB), 3.0, 1).sum() <= VOCAB


def test_the_bound_moves_against_the_error() -> None:
    mu = first_mu(5.0)
    assert mu == 10.0
    assert next_mu(mu, logprob=-7 * math.log(2), tau=5.0, eta=0.1) == pytest.approx(9.8)
    assert next_mu(mu, logprob=-3 * math.log(2), tau=5.0, eta=0.1) == pytest.approx(10.2)
