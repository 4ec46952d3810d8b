"""A draw takes the token of the largest score; distances are in logits."""

import mlx.core as mx
import numpy as np
import pytest

from engine.params import SamplingParams
from engine.sampling.plan import DrawPlan, DrawRow, draw, token_scores
from engine.sampling.row_sampler import RowSampler

VOCAB = 97

PARAMS = {
    "greedy": SamplingParams(),
    "biased": SamplingParams(logit_bias={3: 50.0, 4: -float("inf")}),
    "penalised": SamplingParams(
        repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3
    ),
    "hot": SamplingParams(temperature=1.3),
    "all": SamplingParams(
        temperature=0.8,
        repetition_penalty=1.2,
        frequency_penalty=0.2,
        dry_multiplier=1.5,
        logit_bias={9: 1.0},
    ),
}


def sampler_of(params: SamplingParams, seed: int) -> RowSampler:
    return RowSampler(
        params,
        seed=seed,
        choice=0,
        vocab_size=VOCAB,
        eos_ids=frozenset({5}),
        prompt_tokens=3,
        min_tokens=4,
    )


@pytest.mark.parametrize("name", PARAMS)
def test_the_largest_score_is_the_token_that_is_drawn(name):
    rng = np.random.default_rng(0)
    for seed in range(25):
        ids = [int(token) for token in rng.integers(0, 6, 3 + seed)]
        logits = mx.array(rng.normal(size=VOCAB).astype(np.float32) * 2)
        sampler = sampler_of(PARAMS[name], seed)
        drawn = draw(
            DrawPlan([sampler]),
            [DrawRow(sampler, len(ids), ids)],
            logits[None],
            mx.array([ids[-1]]),
        )
        scores = np.array(token_scores(sampler_of(PARAMS[name], seed), ids, logits))
        assert int(scores.argmax()) == drawn.tokens.tolist()[0]


def test_a_change_of_a_logit_moves_its_score_by_as_much():
    ids, logits = [1, 2, 3], mx.zeros(VOCAB)
    before = token_scores(sampler_of(PARAMS["hot"], 7), ids, logits)
    after = token_scores(sampler_of(PARAMS["hot"], 7), ids, logits.at[50].add(0.25))
    moved = np.array(after - before)
    assert np.isnan(moved[5])  # the end token, which min_tokens forbids
    assert moved[50] == pytest.approx(0.25, abs=1e-5)
    assert np.flatnonzero(np.nan_to_num(moved)).tolist() == [50]
