"""Prompt lookup writes the plain text for every sampler and every storage that can be cut back.

A difference counts unless it is a near-tie: a wider forward sums in another order, so the two
logits of a tie, moved by 1e-3 together, may fall the other way.
"""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.engine import Engine
from engine.lookup.auto_governor import governor_for
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from tests.engine.lookup_rigs import assert_same, decode, lookup, oracle
from tests.engine.proofs.schedules import OddTokens
from tests.engine.rigs import loaded, tiny_engine, tiny_model

MIXES = (
    {},
    {"temperature": 0.8},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.3, "repetition_context_size": 4, "temperature": 1.0},
    {"frequency_penalty": 0.5, "presence_penalty": 0.3},
    {"frequency_penalty": 0.2, "repetition_context_size": -1, "temperature": 0.7},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": -1, "temperature": 1.0},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.2, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.1, "typical_p": 0.9},
    {"temperature": 1.0, "top_n_sigma": 1.0},
    {"temperature": 1.0, "xtc_probability": 0.7, "xtc_threshold": 0.02},
    {"temperature": 1.0, "dynatemp_range": 0.5},
    {"temperature": 1.0, "top_p": 0.7, "min_keep": 3},
    {"logprobs": 2},
)
MODELS = {
    "llama": ("llama", 512),
    "qwen3": ("qwen3", 512),
    "gemma3 below four windows": ("gemma3", 64),
    "gemma3 ring": ("gemma3", 512),
}


@pytest.fixture(scope="module")
def engines(tokenizer):
    """An engine of each storage that can be cut back, shared by examples."""
    return {
        kind: Engine(
            loaded(
                tiny_model(family, hidden_size=32, intermediate_size=64),
                family,
                context=context,
                tokenizer=tokenizer,
            )
        )
        for kind, (family, context) in MODELS.items()
    }


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_every_sampler_writes_the_plain_text(engines, kind, mix):
    engine = engines[kind]
    sampling = SamplingParams(**{"seed": 11, **mix})
    params = SequenceParams(tuple(b"abcabcab"), sampling, max_tokens=40)
    plain = decode(engine, params)
    guess = oracle(plain.tokens, Random(1), vocab=259)
    assert_same(engine, params, decode(engine, params, guess), plain)
    assert sum(guess.accepted) > 5


def test_a_masked_row_writes_the_plain_text(engines):
    engine = engines["llama"]
    params = SequenceParams(tuple(b"abcabcab"), max_tokens=40)
    plain = decode(engine, params, hooks=OddTokens())
    guess = oracle(plain.tokens, Random(2), vocab=259)
    ours = decode(engine, params, guess, hooks=OddTokens())
    assert (ours.tokens, ours.finish) == (plain.tokens, plain.finish)
    assert sum(guess.accepted) > 0


@pytest.mark.parametrize("max_draft", [7, 64])
@pytest.mark.parametrize("length", [1, 14, 15, 16, 17, 30, 62, 63, 64, 65, 130])
def test_a_window_is_crossed_with_drafts_as_without(engines, length, max_draft):
    # mlx-lm#1423, #1914: speculative decoding diverged on full rotating caches.
    engine = engines["gemma3 ring"]
    assert engine.choice.kind == "ring"
    prompt = tuple((7 * at + 5) % 250 for at in range(length))
    params = SequenceParams(prompt, max_tokens=100)
    plain = decode(engine, params)
    guess = oracle(plain.tokens, Random(length), vocab=259)
    ours = decode(engine, params, guess, max_draft=max_draft)
    assert_same(engine, params, ours, plain)
    assert ours.dropped is None
    assert sum(guess.accepted) > 40


def repeats(letters: int):
    """Prompts over a few tokens, so that n-grams come again."""
    return st.lists(st.integers(0, letters - 1), min_size=1, max_size=40).map(tuple)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=20)
@given(
    prompt=repeats(3),
    mix=st.sampled_from(MIXES),
    seed=st.integers(0, 2**53 - 1),
    policy=st.sampled_from(LookupPolicy),
    ngrams=st.sampled_from([(1, 1), (1, 3), (2, 3), (2, 5)]),
    max_draft=st.sampled_from([1, 3, 7, 20]),
    most=st.integers(1, 30),
)
def test_random_requests_write_the_plain_text(
    engines, kind, *, prompt, mix, seed, policy, ngrams, max_draft, most
):
    engine = engines[kind]
    # Four tokens share the answer, so that drafts are found, and often wrong.
    bias = dict.fromkeys(range(4), 60.0) | dict(mix.get("logit_bias", {}))
    sampling = SamplingParams(**{**mix, "seed": seed, "logit_bias": bias})
    params = SequenceParams(prompt, sampling, max_tokens=most)
    low, high = ngrams
    speculation = SpeculationParams(high, low, max_draft, policy)
    costs = WidthCosts(tuple(1 + 0.1 * width for width in range(max_draft + 1)))
    governor = governor_for(speculation, unmeasured=LookupPolicy.GRADED, costs=costs)
    ours = decode(engine, params, lookup(governor, speculation=speculation), max_draft=max_draft)
    assert_same(engine, params, ours, decode(engine, params))
    assert ours.dropped is None


def test_the_property_can_fail():
    """A seed of its own for the drafted run is noticed."""
    engine = tiny_engine(hidden_size=32, intermediate_size=64)
    params = SequenceParams((1, 2, 1, 2), SamplingParams(temperature=1.0, seed=1), max_tokens=30)
    other = replace(params, sampling=replace(params.sampling, seed=2))
    with pytest.raises(AssertionError):
        assert_same(engine, params, decode(engine, other, lookup()), decode(engine, params))
