"""Sampling options become the engine's parameters."""

import math

import pytest

from engine.errors import InvalidParams
from engine.params import DRY_BREAKERS, SamplingParams
from mlxcel_cli.sampling_options import SamplingOptions, parse_biases, sampling_params

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=0.7, top_p=0.95)


def test_nothing_given_leaves_the_defaults():
    assert sampling_params(SamplingOptions(), WARM) == WARM


def test_every_option_reaches_its_parameter():
    values = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.6, "min_p": 0.1, "typical_p": 0.9,
        "top_n_sigma": 1.5, "min_keep": 2, "repetition_penalty": 1.1,
        "repetition_context_size": 32, "frequency_penalty": 0.2, "presence_penalty": 0.3,
        "dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3,
        "dry_penalty_last_n": -1, "xtc_probability": 0.4, "xtc_threshold": 0.2, "mirostat": 2,
        "mirostat_tau": 4.0, "mirostat_eta": 0.2, "dynatemp_range": 0.1,
        "dynatemp_exponent": 1.5, "seed": 11,
    }  # fmt: skip
    params = sampling_params(SamplingOptions(**values), GREEDY)
    assert {name: getattr(params, name) for name in values} == values
    untested = set(SamplingOptions.__dataclass_fields__) - set(values)
    assert untested == {"logit_bias", "dry_sequence_breakers"}


def test_a_value_of_zero_is_a_value():
    assert sampling_params(SamplingOptions(temperature=0.0), WARM).temperature == 0


@pytest.mark.parametrize(("given", "seed"), [(-1, None), (0, 0), (5, 5)])
def test_seed_minus_one_is_drawn_and_seed_zero_is_a_seed(given, seed):
    assert sampling_params(SamplingOptions(seed=given), GREEDY).seed == seed


@pytest.mark.parametrize(
    ("given", "breakers"), [(None, DRY_BREAKERS), (["none"], ()), (["a", "b"], ("a", "b"))]
)
def test_dry_breakers_replace_the_usual_ones(given, breakers):
    params = sampling_params(SamplingOptions(dry_sequence_breakers=given), GREEDY)
    assert params.dry_sequence_breakers == breakers


@pytest.mark.parametrize(
    ("text", "bias"),
    [
        ("15=-2", (15, -2.0)),
        ("-1=2", (-1, 2.0)),
        ('"15"=1', ("15", 1.0)),
        ('"yes"=5', ("yes", 5.0)),
        ("yes=5", ("yes", 5.0)),
        ('"a=b"=-inf', ("a=b", -math.inf)),
        ('" no"=0.5', (" no", 0.5)),
    ],
)
def test_a_bias_names_an_id_or_a_text(text, bias):
    assert parse_biases([text]) == (bias,)


@pytest.mark.parametrize("text", ["15", "=3", "15=x", "15=nan", "", "15="])
def test_a_malformed_bias_is_refused(text):
    with pytest.raises(InvalidParams, match="--logit-bias"):
        parse_biases([text])


def test_an_id_of_endless_digits_stays_out_of_every_vocabulary():
    ((token, _),) = parse_biases(["9" * 5000 + "=1"])
    assert isinstance(token, int)
    assert token > 2**40
