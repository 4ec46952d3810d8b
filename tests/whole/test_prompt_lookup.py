"""Prompt lookup on the starter writes plain decoding's text; the whole matrix is a benchmark."""

import logging
from pathlib import Path

import pytest

from benchmarks.lookup_identity import NEAR_TIE, PROMPTS, SAMPLERS, choice_gap, compare
from engine.engine import Engine
from engine.models.load import LoadedModel, LoadOptions, WeightForm, load
from engine.params import SamplingParams, SequenceParams
from engine.prefill import plan_prefill
from engine.runtime.blas import prepare_blas

pytestmark = [pytest.mark.starter, pytest.mark.slow]

LOG = logging.getLogger(__name__)

CHOSEN = [
    ("copy a poem", "greedy"),
    ("JSON, next record", "seeded"),
    ("code, same again", "greedy, penalties"),
    ("table", "greedy"),
    ("prose, reply", "seeded, penalties"),
    ("CJK, copy", "greedy"),
    ("emoji, copy", "seeded"),
]
"""One of each kind of text, and each sampler."""


@pytest.fixture(scope="module")
def loaded(starter_folder: Path) -> LoadedModel:
    prepare_blas(starter_folder.parents[1], None)
    return load(starter_folder, LoadOptions(dtype="float32", form=WeightForm.DENSE))


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel) -> Engine:
    return Engine(loaded)


def test_the_matrix_is_twenty_prompts_by_four_samplers():
    assert (len(PROMPTS), len(SAMPLERS)) == (20, 4)
    assert {sampler for _, sampler in CHOSEN} == set(SAMPLERS)


@pytest.mark.parametrize(("prompt", "sampler"), CHOSEN)
def test_the_text_is_the_same_with_and_without(loaded, engine, prompt, sampler):
    done = compare(loaded, engine, prompt, sampler, tokens=32)
    LOG.info(done.line)
    assert not done.is_fault, done.line
    if "copy" in prompt:
        assert done.stats.accepted > 0, "nothing was drafted: the test proves nothing"


def test_a_gap_is_what_a_bias_must_bridge(loaded, engine):
    """The judge of ties: raising the loser by more than the gap turns the choice."""
    ids = loaded.tokenizer.encode(PROMPTS["prose, reply"], add_bos=True)
    params = SequenceParams(ids, SamplingParams(temperature=0.8, seed=7), max_tokens=1)

    def first(bias: dict[int, float]) -> int:
        sampling = SamplingParams(temperature=0.8, seed=7, logit_bias=bias)
        seq = engine.open(SequenceParams(ids, sampling, max_tokens=1))
        try:
            for piece in plan_prefill(prompt_tokens=len(ids)):
                outcome = engine.prefill(seq, piece)
        finally:
            engine.close(seq)
        assert outcome.first is not None
        assert outcome.first.token is not None
        return outcome.first.token

    winner, other = first({}), 100
    gap = choice_gap(loaded, params, (), (other,), (winner,))
    assert gap > NEAR_TIE
    assert first({other: gap + NEAR_TIE}) == other
    assert first({other: gap - NEAR_TIE}) != other
