import dataclasses
import math
from collections.abc import Callable

import pytest

from engine.errors import InvalidParams
from engine.params import (
    SEED_LIMIT,
    LoopRule,
    SamplingParams,
    SequenceParams,
    SpeculationParams,
    seeded,
)

HUGE = 10**400

REFUSED = [
    *((SamplingParams, "temperature", value) for value in (-0.1, math.inf, math.nan)),
    *((SamplingParams, "top_k", value) for value in (-2, HUGE)),
    *((SamplingParams, "top_p", value) for value in (-0.1, 1.1, math.nan)),
    *((SamplingParams, "min_p", value) for value in (-0.1, 1.1)),
    *((SamplingParams, "typical_p", value) for value in (0, -1, 1.1, math.nan)),
    *((SamplingParams, "top_n_sigma", value) for value in (-1.5, math.inf)),
    *((SamplingParams, "min_keep", value) for value in (-1, HUGE)),
    *((SamplingParams, "repetition_penalty", value) for value in (0, -1, math.inf, math.nan)),
    (SamplingParams, "repetition_context_size", -2),
    *((SamplingParams, "frequency_penalty", value) for value in (math.inf, math.nan)),
    *((SamplingParams, "presence_penalty", value) for value in (-math.inf, math.nan)),
    (SamplingParams, "dry_multiplier", -1),
    (SamplingParams, "dry_base", 0.9),
    (SamplingParams, "dry_allowed_length", -1),
    (SamplingParams, "dry_penalty_last_n", -2),
    *((SamplingParams, "xtc_probability", value) for value in (-0.1, 1.1)),
    *((SamplingParams, "xtc_threshold", value) for value in (-0.1, 1.1)),
    *((SamplingParams, "mirostat", value) for value in (-1, 3)),
    (SamplingParams, "mirostat_tau", -1),
    (SamplingParams, "mirostat_eta", math.nan),
    (SamplingParams, "dynatemp_range", -1),
    (SamplingParams, "dynatemp_exponent", -1),
    *((SamplingParams, "seed", value) for value in (-1, SEED_LIMIT)),
    *((SamplingParams, "logit_bias", value) for value in ({-1: 0.5}, {3: math.nan})),
    (SamplingParams, "logprobs", -1),
    (SpeculationParams, "ngram_min", 0),
    *((SpeculationParams, "ngram_max", value) for value in (1, 17)),
    *((SpeculationParams, "max_draft", value) for value in (0, 65)),
]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [pytest.param(*case, id=f"{case[1]}={str(case[2])[:8]}") for case in REFUSED],
)
def test_a_value_out_of_bounds_is_refused_by_name(kind: Callable[..., object], field, value):
    with pytest.raises(InvalidParams) as refused:
        kind(**{field: value})
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("context_tokens", 0),
        ("prompt_ids", ()),
    ],
)
def test_a_request_out_of_bounds_is_refused_by_name(field: str, value: object):
    with pytest.raises(InvalidParams) as refused:
        SequenceParams(**{"prompt_ids": (1,), field: value})
    assert refused.value.field == {"prompt_ids": "prompt"}.get(field, field)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"max_pattern": -1}, "loop_max_pattern"),
        ({"max_pattern": 4, "min_count": 1}, "loop_min_count"),
    ],
)
def test_a_meaningless_loop_rule_is_refused_by_name(values: dict[str, int], field: str):
    with pytest.raises(InvalidParams) as refused:
        LoopRule(**values)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "values",
    [
        {"top_p": 0},
        {"top_p": 1},
        {"temperature": 1e-9},
        {"xtc_threshold": 0.9},
        {"top_k": 10**9},
        {"top_n_sigma": -1},
        {"repetition_context_size": -1},
        {"seed": 0},
        {"seed": SEED_LIMIT - 1},
        {"logit_bias": {3: -math.inf}},
    ],
)
def test_the_edges_are_allowed(values: dict[str, object]):
    assert SamplingParams(**values) is not None


@pytest.mark.parametrize("max_tokens", [None, 0, 1])
def test_no_one_and_endlessly_many_tokens_may_be_asked(max_tokens: int | None):
    assert SequenceParams((1,), max_tokens=max_tokens).max_tokens == max_tokens


def test_the_defaults_are_greedy_with_every_filter_off():
    params = SamplingParams()
    assert params.greedy
    assert not params.has_penalties
    assert not params.has_dry
    assert not params.has_feedback


def test_requests_are_frozen_and_keep_their_own_copies():
    bias, prompt = {3: 1.0}, [1, 2]
    params = SequenceParams(prompt, SamplingParams(logit_bias=bias))
    bias[4] = 1.0
    prompt.append(3)
    assert dict(params.sampling.logit_bias) == {3: 1.0}
    assert params.prompt_ids == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_tokens = 3
    with pytest.raises(TypeError):
        params.sampling.logit_bias[4] = 1.0


@pytest.mark.parametrize("seed", [0, 7])
def test_a_given_seed_is_kept_and_zero_is_a_seed(seed: int):
    params = SequenceParams((1,), SamplingParams(seed=seed))
    assert seeded(params) is params


def test_a_missing_seed_is_drawn_anew_each_time():
    seeds = {seeded(SequenceParams((1,))).sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)


@pytest.mark.parametrize(
    ("values", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 1}, False),
        ({"temperature": 1, "top_k": 1}, True),
        ({"temperature": 0, "mirostat": 2}, False),
    ],
)
def test_when_a_row_is_greedy(values: dict[str, float], greedy: bool):
    assert SamplingParams(**values).greedy is greedy


@pytest.mark.parametrize(
    ("values", "on"),
    [
        ({"repetition_penalty": 1.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"presence_penalty": 1, "repetition_context_size": 0}, False),
    ],
)
def test_when_penalties_are_on(values: dict[str, float], on: bool):
    assert SamplingParams(**values).has_penalties is on


def test_dry_without_a_look_back_is_off():
    assert SamplingParams(dry_multiplier=1).has_dry
    assert not SamplingParams(dry_multiplier=1, dry_penalty_last_n=0).has_dry


def test_a_value_past_what_a_draw_can_hold_is_refused_by_the_bound_it_breaks():
    with pytest.raises(InvalidParams, match="0 or more, at most 3e\\+38, got 1e\\+300"):
        SamplingParams(temperature=1e300)
    with pytest.raises(InvalidParams, match="0 or more, got -1"):
        SamplingParams(temperature=-1)


def test_a_negative_loop_rule_is_refused_by_its_field():
    for field in ("min_pattern", "max_pattern"):
        with pytest.raises(InvalidParams) as refused:
            LoopRule(**{field: -1})
        assert refused.value.field == f"loop_{field}"


def test_a_top_k_of_minus_one_is_off():
    assert SamplingParams(temperature=1.0, top_k=-1) == SamplingParams(temperature=1.0, top_k=0)
