"""One request in the scheduler is the direct engine's answer, with cache, without, and drafted."""

import pytest

from engine.errors import InternalFault
from engine.models.load import load
from engine.params import SamplingParams
from mlxcel_cli.parity.comparison import ParityCase, ParityRequest, VariantUnfit, parity_cases
from mlxcel_cli.parity.engine_variants import RecordingEngine, engine_tokens
from mlxcel_cli.parity.front_variants import (
    cache_hit_tokens,
    cache_miss_tokens,
    scheduler_lookup_tokens,
    scheduler_tokens,
)
from tests.engine.models.tiny import write_tiny
from tests.engine.rigs import HYBRID

PROMPT = tuple(range(40, 75)) + tuple(range(40, 45))
REPEATING = {65: 30.0, 66: 29.5}
"""Biases under which a model that knows nothing writes two characters only."""


@pytest.fixture(scope="module", params=["llama", "gemma3", "hybrid"])
def loaded(request, tmp_path_factory):
    shape = HYBRID if request.param == "hybrid" else {}
    base = "llama" if request.param == "hybrid" else request.param
    return load(write_tiny(tmp_path_factory.mktemp("models") / "tiny", base, **shape))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return load(write_tiny(tmp_path_factory.mktemp("models") / "llama"))


def asked(case: ParityCase, prompt=PROMPT, max_tokens: int = 24) -> ParityRequest:
    return ParityRequest(prompt, case, max_tokens=max_tokens, chunk_tokens=16, batch=1)


@pytest.mark.parametrize("case", ["greedy", "penalised", "seeded"])
@pytest.mark.parametrize("variant", [scheduler_tokens, cache_miss_tokens, cache_hit_tokens])
def test_one_request_in_a_scheduler_is_the_direct_engine_s_to_the_token(loaded, variant, case):
    request = asked(parity_cases(7)[case])
    expected = engine_tokens(loaded, request)
    assert len(expected) > 8
    assert variant(loaded, request) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_in_the_scheduler_change_no_token(llama, temperature):
    sampling = SamplingParams(temperature=temperature, seed=7, logit_bias=REPEATING)
    request = asked(ParityCase("repeating", sampling), max_tokens=400)
    expected = engine_tokens(llama, request)
    assert len(expected) == 400
    assert scheduler_lookup_tokens(llama, request) == expected == scheduler_tokens(llama, request)


def test_a_variant_that_drafted_nothing_says_so(llama):
    request = asked(parity_cases(7)["greedy"], (1, 2, 3), 2)
    with pytest.raises(VariantUnfit, match="drafted nothing"):
        scheduler_lookup_tokens(llama, request)


def test_a_variant_whose_cache_gave_nothing_says_so(llama):
    with pytest.raises(VariantUnfit, match="took nothing over"):
        cache_hit_tokens(llama, asked(parity_cases(7)["greedy"], (5,), 1))


def test_events_with_other_tokens_than_the_engine_wrote_are_a_fault(llama, monkeypatch):
    answer_to = RecordingEngine.answer_to
    monkeypatch.setattr(
        RecordingEngine, "answer_to", lambda self, seq: (*answer_to(self, seq)[:-1], 1)
    )
    with pytest.raises(InternalFault):
        scheduler_tokens(llama, asked(parity_cases(7)["greedy"]))
