"""Which stages are built, and what the rows that do not use them get."""

import numpy as np
import pytest

from engine.params import SamplingParams
from engine.sampling.chain import Stages
from engine.sampling.row_sampler import SHUT_GATE, RowSampler
from engine.sampling.stage_params import (
    KEEP_ALL,
    chain_stages,
    logprob_rows,
    penalty_params,
    stage_params,
    step_params,
)


def row_sampler(params: SamplingParams, vocab_size: int = 5000) -> RowSampler:
    return RowSampler(
        params,
        seed=0,
        choice=0,
        vocab_size=vocab_size,
        eos_ids=frozenset(),
        prompt_tokens=1,
    )


def stages_of(*params: SamplingParams, vocab_size: int = 5000) -> Stages | None:
    return chain_stages([row_sampler(one, vocab_size) for one in params])


def test_rows_that_take_their_best_token_need_no_chain() -> None:
    assert stages_of(SamplingParams(), SamplingParams(top_k=1, temperature=1.0)) is None
    assert chain_stages([None, None]) is None


@pytest.mark.parametrize(
    ("top_k", "candidates"),
    [(2, 64), (40, 64), (51, 64), (52, 256), (200, 256), (1024, 1280), (1025, None), (0, None)],
)
def test_a_small_top_k_is_narrow_with_room_for_ties(top_k: int, candidates: int | None) -> None:
    stages = stages_of(SamplingParams(temperature=1.0, top_k=top_k))
    assert stages is not None
    assert stages.candidates == candidates


def test_one_row_without_top_k_makes_the_batch_wide() -> None:
    stages = stages_of(
        SamplingParams(temperature=1.0, top_k=40), SamplingParams(temperature=1.0, top_p=0.9)
    )
    assert stages is not None
    assert (stages.candidates, stages.largest_top_k) == (None, 40)


def test_a_greedy_row_leaves_the_batch_narrow() -> None:
    stages = stages_of(SamplingParams(temperature=1.0, top_k=40), SamplingParams())
    assert stages is not None
    assert stages.candidates == 64
    assert stages.greedy_rows


def test_candidates_never_outnumber_the_vocabulary() -> None:
    stages = stages_of(SamplingParams(temperature=1.0, top_k=40), vocab_size=50)
    assert stages is not None
    assert stages.candidates == 50


def test_a_top_k_of_the_vocabulary_or_more_is_off() -> None:
    stages = stages_of(SamplingParams(temperature=1.0, top_k=50), vocab_size=50)
    assert stages == stages_of(SamplingParams(temperature=1.0), vocab_size=50)


def test_mirostat_replaces_the_rows_truncation() -> None:
    stages = stages_of(SamplingParams(temperature=1.0, mirostat=2, top_k=40, top_p=0.5))
    assert stages == Stages(candidates=None, mirostat=True)


def test_rows_that_do_not_use_a_stage_keep_all() -> None:
    samplers = [
        row_sampler(SamplingParams(temperature=0.5, top_p=0.5, min_p=0.1, top_k=3)),
        row_sampler(SamplingParams(temperature=2.0)),
        None,
    ]
    stages = chain_stages(samplers)
    assert stages is not None
    params = stage_params(samplers, stages)
    assert params.top_p is not None
    assert params.log_min_p is not None
    assert params.top_k is not None
    assert np.array(params.temperature).ravel().tolist() == [0.5, 2.0, 1.0]
    assert np.array(params.top_p).ravel().tolist() == [0.5, KEEP_ALL, KEEP_ALL]
    assert np.array(params.log_min_p).ravel().tolist()[1:] == [-np.inf, -np.inf]
    assert np.array(params.top_k).ravel().tolist() == [3, 0, 0]
    assert params.typical_p is None
    assert params.min_keep is None


def test_step_params_follow_the_position() -> None:
    samplers = [
        row_sampler(SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.1)),
        None,
    ]
    stages = chain_stages(samplers)
    assert stages is not None
    seen = set()
    for position in range(20):
        thresholds = step_params(stages, samplers, [position, 0]).xtc_threshold
        assert thresholds is not None
        values = np.array(thresholds).ravel().tolist()
        assert values[1] == SHUT_GATE
        seen.add(round(values[0], 3))
    assert seen == {0.1, SHUT_GATE}


def test_penalties_and_logprobs_cost_nothing_when_nobody_asks() -> None:
    samplers = [row_sampler(SamplingParams(temperature=1.0)), None]
    assert penalty_params(samplers) is None
    assert logprob_rows(samplers) is None


def test_no_alternatives_is_a_request_too() -> None:
    rows = logprob_rows([None, row_sampler(SamplingParams(logprobs=0))])
    assert rows is not None
    assert (rows.rows, rows.top) == ((1,), (0,))
