"""Prompt lookup as a front end asks for it: refusals by name, the warm-up, counts and faults."""

import pytest

from engine.events import Started
from engine.finish import FinishCause
from engine.lookup.eligibility import Refusal
from engine.lookup.reference import ReferenceText
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from engine.session import Session
from tests.engine.inside import rows_of
from tests.engine.rigs import Watched, cycle_engine, tiny_engine
from tests.engine.session_rigs import Said, said

PROMPT = tuple(b"abcdefghabc")
AUTO = SpeculationParams()
CHEAP = WidthCosts((1.0, 1.1, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4))
DEAR = WidthCosts(tuple(float(width) for width in range(1, 9)))


@pytest.fixture
def engine(tokenizer):
    """Writes the alphabet on and on, 24 letters a period."""
    return cycle_engine(vocab=259, period=24, tokenizer=tokenizer)


def answer(session: Session, prompt=PROMPT, *, references=(), speculation=AUTO, **params) -> Said:
    asked = SequenceParams(tuple(prompt), speculation=speculation, **params)
    return said(session.generate(asked, references=references))


def test_counts_are_told_with_the_answer(engine):
    told = answer(Session(engine, width_costs=CHEAP), (0,), max_tokens=100)
    plain = answer(Session(engine), (0,), speculation=None, max_tokens=100)
    assert (told.text, told.finish) == (plain.text, plain.finish)
    assert told.lookup is not None
    assert told.timings.draft_n == told.lookup.proposed == told.lookup.accepted > 50
    assert told.timings.draft_n_accepted == told.lookup.accepted
    assert told.timings.draft_rounds == told.lookup.drafted_rounds > 0
    assert (plain.lookup, plain.timings.draft_n, plain.timings.draft_rounds) == (None, 0, 0)


@pytest.mark.parametrize(("prompt", "reads"), [((0,), 1), (PROMPT, 2)])
@pytest.mark.parametrize("policy", list(LookupPolicy))
def test_rounds_are_all_forwards_after_the_prompts(engine, prompt, reads, policy):
    # Asks that a step in flight overtook were left out, and so were steps without room to draft.
    watched = Watched(engine)
    session = Session(engine, width_costs=CHEAP, builds_kernels=False)
    told = answer(session, prompt, speculation=SpeculationParams(policy=policy), max_tokens=100)
    assert told.lookup is not None
    forwards = watched.calls - reads
    assert told.lookup.rounds == forwards
    assert told.lookup.accepted + told.lookup.rounds == told.usage.completion_tokens - 1
    assert told.lookup.tokens_per_forward(100) == 99 / forwards


@pytest.mark.parametrize("tokens", [0, 1])
def test_an_answer_without_a_round_has_counts_of_zero(engine, tokens):
    told = answer(Session(engine, width_costs=CHEAP), max_tokens=tokens)
    assert told.finish is FinishCause.LENGTH
    assert (told.timings.draft_n, told.timings.draft_rounds) == (0, 0)


def test_drafts_may_come_from_a_reference(engine):
    reference = ReferenceText.from_tokens("the alphabet", range(24), AUTO)
    told = answer(Session(engine, width_costs=CHEAP), (0,), references=(reference,), max_tokens=20)
    assert told.lookup is not None
    assert told.lookup.accepted > 10
    assert told.usage.prompt_tokens == 1


def test_mirostat_is_refused_by_name(engine):
    told = answer(Session(engine), sampling=SamplingParams(mirostat=2), max_tokens=3)
    assert told.lookup_refused is Refusal.SAMPLER_FEEDBACK
    assert "--mirostat" in told.lookup_refused.sentence
    assert (told.usage.completion_tokens, told.lookup) == (3, None)


def test_a_hybrid_model_is_refused_by_name_and_decodes_plainly(tokenizer):
    # mlx-lm#1446: such rows cannot drop rejected tokens.
    engine = tiny_engine("hybrid", tokenizer=tokenizer)
    running = Session(engine).generate(SequenceParams(PROMPT, speculation=AUTO, max_tokens=3))
    started = next(running)
    assert isinstance(started, Started)
    assert started.lookup_refused is not None
    assert "cannot drop rejected tokens" in started.lookup_refused.sentence
    assert said([started, *running]).usage.completion_tokens == 3, "decoded plainly"
    assert not rows_of(engine)


def widths(watched: Watched) -> list[int]:
    return [fed.shape[1] for fed in watched.fed]


@pytest.mark.parametrize(
    ("builds_kernels", "measured"), [(True, set(range(1, 9))), (False, {1, 2, 4, 8})]
)
def test_widths_are_measured_once_before_the_first_token(engine, builds_kernels, measured):
    watched = Watched(engine)
    session = Session(engine, builds_kernels=builds_kernels)
    first = answer(session, max_tokens=12)
    costs = session.width_costs
    assert costs is not None
    assert costs.max_draft == 7
    fed = widths(watched)
    assert measured <= set(fed)
    watched.fed.clear()
    assert answer(session, max_tokens=12).text == first.text
    assert session.width_costs is costs
    assert len(widths(watched)) < len(fed) / 2


def test_a_row_is_as_if_nothing_had_been_measured(tokenizer):
    sampling = SamplingParams(temperature=1.0, seed=3)
    plain, measured = (
        answer(
            Session(tiny_engine(tokenizer=tokenizer), width_costs=costs),
            sampling=sampling,
            max_tokens=20,
        )
        for costs in (DEAR, None)
    )
    assert measured.text == plain.text


def test_a_budget_below_the_longest_draft_is_not_worth_measuring(engine):
    session = Session(engine)
    answer(session, max_tokens=7)
    assert session.width_costs is None
    answer(session, max_tokens=8)
    assert session.width_costs is not None


def test_a_longer_draft_than_measured_is_measured(engine):
    session = Session(engine, width_costs=CHEAP)
    answer(session, speculation=SpeculationParams(max_draft=12), max_tokens=20)
    assert session.width_costs is not None
    assert session.width_costs.max_draft == 12


@pytest.mark.parametrize("policy", [LookupPolicy.GRADED, LookupPolicy.GATED, LookupPolicy.FIXED])
def test_only_auto_asks_for_costs_where_no_kernels_are_built(engine, policy):
    session = Session(engine, builds_kernels=False)
    answer(session, speculation=SpeculationParams(policy=policy), max_tokens=20)
    assert session.width_costs is None


def test_the_time_of_measuring_is_the_first_token_s_not_the_prompt_s(engine):
    now = iter(range(10**6))
    session = Session(engine, clock=lambda: float(next(now)))
    told = answer(session, max_tokens=12).timings
    assert told.ttft_s > 15 > told.prompt_s


def test_a_width_that_fails_leaves_the_answer_plain_and_says_so(engine):
    plain = answer(Session(engine), speculation=None, max_tokens=30)
    watched = Watched(engine)
    watched.fails_in = lambda call: call == 4
    told = answer(Session(engine), max_tokens=30)
    assert told.text == plain.text
    assert "fell over" in str(told.lookup_dropped)
    assert told.lookup is None
    assert set(widths(watched)[4:]) == {1}


def test_where_no_width_pays_every_step_is_a_plain_pipelined_one(engine):
    watched = Watched(engine)
    told = answer(Session(engine, width_costs=DEAR), max_tokens=60)
    assert told.lookup is not None
    assert told.lookup.paused_rounds == 58, "none is asked for the last"
    assert told.lookup.rounds == 59
    assert set(widths(watched)[1:]) == {1}
