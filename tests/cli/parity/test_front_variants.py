"""``generate`` and a server of this machine write what the direct engine writes."""

import pytest

from engine.errors import InternalFault
from engine.models.load import load
from engine.params import SamplingParams
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.parity import front_variants
from mlxcel_cli.parity.comparison import ParityCase, ParityRequest, VariantUnfit, parity_cases
from mlxcel_cli.parity.engine_variants import engine_tokens
from mlxcel_cli.parity.front_variants import generate_tokens, http_tokens
from tests.engine.models.tiny import write_tiny

PROMPT = tuple(b"the quick brown fox jumps over the lazy do")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(write_tiny(tmp_path_factory.mktemp("models") / "tiny"))


def asked(case: str = "greedy", prompt=PROMPT, **sampling) -> ParityRequest:
    chosen = ParityCase("own", SamplingParams(**sampling)) if sampling else parity_cases(7)[case]
    return ParityRequest(prompt, chosen, max_tokens=24, chunk_tokens=16, batch=1)


@pytest.mark.parametrize("variant", [generate_tokens, http_tokens])
@pytest.mark.parametrize("case", ["greedy", "penalised", "seeded"])
def test_a_front_end_s_answer_is_the_direct_engine_s_to_the_token(loaded, variant, case):
    expected = engine_tokens(loaded, asked(case))
    assert len(expected) > 4
    assert variant(loaded, asked(case)) == expected


@pytest.mark.parametrize("variant", [generate_tokens, http_tokens])
def test_every_setting_of_the_sampler_reaches_the_engine(loaded, variant):
    request = asked(
        temperature=1.1, top_k=60, top_p=0.9, min_p=0.01, typical_p=0.95, top_n_sigma=3.0,
        repetition_penalty=1.2, dry_multiplier=0.5, dry_base=1.5, xtc_probability=0.4,
        xtc_threshold=0.05, seed=99, logit_bias={70: 2.0, 80: -3.0},
    )  # fmt: skip
    assert variant(loaded, request) == engine_tokens(loaded, request)


def test_a_prompt_that_text_cannot_carry_is_not_run_through_generate(loaded):
    with pytest.raises(VariantUnfit, match="other tokens"):
        generate_tokens(loaded, asked(prompt=(0xFF, 0xFE)))


def test_a_refusal_of_the_server_is_reported(loaded, monkeypatch):
    monkeypatch.setattr(front_variants, "ANSWER_PATH", "/no/such/path")
    with pytest.raises(InternalFault, match="no/such/path"):
        http_tokens(loaded, asked())


@pytest.mark.parametrize("variant", [generate_tokens, http_tokens])
def test_text_that_is_not_that_of_the_tokens_is_a_fault(loaded, variant, monkeypatch):
    expected = engine_tokens(loaded, asked())
    decode = Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer,
        "decode",
        lambda self, ids, **more: decode(self, ids, **more) + "!" * (tuple(ids) == expected),
    )
    with pytest.raises(InternalFault, match="text that was sent"):
        variant(loaded, asked())
