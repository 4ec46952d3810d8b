"""What a verify round and its warm-up do to a row of a real engine."""

import pytest

from engine.engine import Engine
from engine.errors import EvalFailed, InvalidParams
from engine.lookup.eligibility import Refusal, refusal
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import row_of, storage_of
from tests.engine.proofs.schedules import OddTokens
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    cycle_engine,
    loaded,
    prefill,
    tiny_engine,
    tiny_model,
)

PROMPT = tuple(range(10))


def opened(engine, prompt=PROMPT, **params):
    seq = engine.open(SequenceParams(prompt, **params))
    prefill(engine, seq)
    return seq


@pytest.mark.parametrize(
    ("params", "room"),
    [
        pytest.param({}, 7, id="the drafter's own bound"),
        pytest.param({"max_tokens": 5}, 3, id="the budget, but for the round's own token"),
        pytest.param({"max_tokens": 2}, 0, id="one token left"),
        pytest.param({"context_tokens": 15}, 3, id="the context"),
        pytest.param({"context_tokens": 12}, 0, id="a context that is nearly full"),
        pytest.param({"max_tokens": 5, "context_tokens": 14}, 2, id="the smaller of both"),
    ],
)
def test_a_draft_has_room_within_budget_and_context(params, room):
    engine = cycle_engine()
    assert engine.draft_room(opened(engine, **params), 7) == room


def test_the_room_under_a_context_bound_is_what_may_be_appended():
    # Prompt 20, 1 written, bound 26: after 4 drafted tokens and one of its own the row is full.
    engine = cycle_engine(context=26)
    seq = opened(engine, (*range(16), 0, 1, 2, 3))
    assert engine.draft_room(seq, 7) == 4


def test_a_ring_has_room_within_its_slack():
    engine = tiny_engine("gemma3", context=512)
    assert engine.choice.kind == "ring"
    seq = opened(engine, PROMPT * 6)
    assert engine.draft_room(seq, 64) == 64


def test_rows_whose_state_cannot_be_cut_inside_a_forward_have_no_room():
    engine = tiny_engine("hybrid")
    assert engine.draft_room(opened(engine), 7) == 0


def test_a_row_that_was_lost_with_others_has_no_room_and_fails_in_order():
    engine = cycle_engine()
    seq, other = opened(engine), opened(engine)
    lost = EvalFailed("gone")
    row_of(engine, seq).lost = row_of(engine, other).lost = lost
    storage_of(engine).reset()
    assert engine.draft_room(seq, 7) == 0
    outcome = engine.verify(other, (11, 12))
    assert (outcome.error, outcome.accepted, outcome.steps[0].error) == (lost, 0, lost)
    assert not engine.health.failures
    engine.close(seq)
    engine.close(other)


def facts(engine, sampling=None, hooks=None, max_draft=7):
    seq = engine.open(SequenceParams(PROMPT, sampling or SamplingParams()), hooks=hooks)
    return engine.drafting.facts(seq, max_draft)


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({}, None),
        ({"temperature": 0.8, "repetition_penalty": 1.2}, None),
        ({"logprobs": 2}, None),
        ({"dynatemp_range": 0.5, "temperature": 1}, None),
        ({"mirostat": 2}, Refusal.SAMPLER_FEEDBACK),
    ],
    ids=str,
)
def test_what_a_request_asks_decides(sampling, reason):
    assert refusal(facts(cycle_engine(), SamplingParams(**sampling))) == reason


def test_a_mask_is_told():
    assert refusal(facts(cycle_engine(), hooks=OddTokens())) is Refusal.STRUCTURED_OUTPUT


@pytest.mark.parametrize(
    ("family", "context", "reason"),
    [
        ("llama", 512, None),
        ("gemma3", 64, None),
        ("gemma3", 512, None),
        ("hybrid", 512, Refusal.NOT_TRIMMABLE),
    ],
)
def test_what_a_model_keeps_decides(family, context, reason):
    assert refusal(facts(tiny_engine(family, context=context), max_draft=64)) == reason


def test_a_family_that_runs_one_row_at_a_time_may_draft():
    engine = Engine(loaded(tiny_model("llama"), "phi3small"))
    assert engine.choice.kind == "one row at a time"
    assert refusal(facts(engine)) is None


def test_a_width_is_forwarded_and_cut_off_without_a_trace():
    engine, untouched = tiny_engine(), tiny_engine()
    seqs = [opened(one) for one in (engine, untouched)]
    for width in (1, 2, 8):
        engine.drafting.forward_width(seqs[0], width, wait=width != 2)
        assert engine.drafting.held_tokens(seqs[0]) == len(PROMPT) + width
        engine.drafting.rewind(seqs[0], width)
    texts = []
    for one, seq in zip((engine, untouched), seqs, strict=True):
        texts.append([one.step([seq])[0].token for _ in range(12)])
        assert_length_law(one, [seq])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("wait", [True, False])
def test_a_width_that_the_backend_refuses_is_an_engine_error(wait):
    engine = cycle_engine()
    seq = opened(engine)
    Watched(engine).fails_in = lambda call: True
    with pytest.raises(EvalFailed):
        engine.drafting.forward_width(seq, 3, wait=wait)


@pytest.mark.parametrize("token", [-1, 16, 2**40])
def test_a_token_outside_the_vocabulary_is_refused_before_anything_happens(token):
    engine = cycle_engine()
    seq = opened(engine)
    with pytest.raises(InvalidParams, match="draft"):
        engine.verify(seq, (11, token))
    assert_length_law(engine, [seq])
    assert [step.token for step in engine.verify(seq, (11, 12)).steps] == [11, 12, 13]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda logits: logits[:, -1:], id="one position"),
        pytest.param(lambda logits: logits[..., None], id="one axis more"),
        pytest.param(lambda logits: logits[0], id="one axis less"),
    ],
)
def test_logits_of_another_shape_fail_the_round_and_the_row_only(spoil):
    engine = cycle_engine()
    seq, other = opened(engine), opened(engine)
    watched = Watched(engine)
    watched.spoils = lambda call, logits: spoil(logits) if call == 1 else logits
    outcome = engine.verify(seq, (11, 12))
    assert isinstance(outcome.error, EvalFailed)
    assert outcome.accepted == 0
    assert engine.drafting.held_tokens(seq) == len(PROMPT)
    assert [step.token for step in engine.verify(other, (11, 12)).steps] == [11, 12, 13]


def test_the_draws_of_a_round_are_those_of_single_steps():
    plain, drafted = tiny_engine(), tiny_engine()
    sampling = SamplingParams(temperature=1.0, seed=5)
    a, b = (opened(one, sampling=sampling) for one in (plain, drafted))
    answer = [plain.step([a])[0].token for _ in range(4)]
    logits = Watched(drafted)
    outcome = drafted.verify(b, answer[:3])
    assert ([step.token for step in outcome.steps], outcome.accepted) == (answer, 3)
    (verified,) = logits.logits
    assert verified.shape == (1, 4, 259)
