"""The engine's variants: a request's answer with a prompt cache, and drafted; what rows wrote."""

import pytest

from engine.errors import InternalFault
from engine.models.load import load
from engine.params import SamplingParams, SequenceParams
from mlxcel_cli.parity.comparison import ParityCase, ParityRequest, VariantUnfit, parity_cases
from mlxcel_cli.parity.engine_variants import (
    RecordingEngine,
    cache_hit_tokens,
    cache_miss_tokens,
    engine_tokens,
    lookup_tokens,
    sync_tokens,
)
from tests.engine.models.tiny import write_tiny
from tests.engine.rigs import HYBRID, prefill

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
@pytest.mark.parametrize("variant", [sync_tokens, cache_miss_tokens, cache_hit_tokens])
def test_an_answer_over_a_cache_is_the_one_without_to_the_token(loaded, variant, case):
    request = asked(parity_cases(7)[case])
    expected = engine_tokens(loaded, request)
    assert len(expected) > 8
    assert variant(loaded, request) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_change_no_token(llama, temperature):
    sampling = SamplingParams(temperature=temperature, seed=7, logit_bias=REPEATING)
    request = asked(ParityCase("repeating", sampling), max_tokens=400)
    expected = engine_tokens(llama, request)
    assert len(expected) == 400
    assert lookup_tokens(llama, request) == expected


def test_a_variant_that_drafted_nothing_says_so(llama):
    request = asked(parity_cases(7)["greedy"], (1, 2, 3), 2)
    with pytest.raises(VariantUnfit, match="nothing was drafted"):
        lookup_tokens(llama, request)


def test_a_variant_whose_cache_gave_nothing_says_so(llama):
    with pytest.raises(VariantUnfit, match="took nothing over"):
        cache_hit_tokens(llama, asked(parity_cases(7)["greedy"], (5,), 1))


def test_events_with_other_tokens_than_the_engine_wrote_are_a_fault(llama, monkeypatch):
    answer_to = RecordingEngine.answer_to
    monkeypatch.setattr(
        RecordingEngine, "answer_to", lambda self, seq: (*answer_to(self, seq)[:-1], 1)
    )
    with pytest.raises(InternalFault):
        engine_tokens(llama, asked(parity_cases(7)["greedy"]))


def test_the_answer_of_a_closed_row_is_kept_without_its_prompt(tmp_path):
    request = ParityRequest((40, 41, 42), parity_cases(1)["greedy"], 8, chunk_tokens=16, batch=1)
    engine = RecordingEngine(load(write_tiny(tmp_path / "tiny")), request)
    first, second = (engine.open(SequenceParams((40, 41, one), max_tokens=8)) for one in (42, 43))
    for seq in (first, second):
        prefill(engine, seq)
    token = engine.step([first])[0].token
    assert not engine.is_closed(first)
    with pytest.raises(KeyError):
        engine.answer_to(first)
    engine.close(second)
    engine.close(first)
    assert engine.is_closed(first)
    assert engine.answer_to(first)[-1] == token
    assert (len(engine.answer_to(first)), len(engine.answer_to(second))) == (2, 1)
    assert engine.last_answer == engine.answer_to(first)
