"""Bounds that are met exactly: each request gets its tokens and its end, none waits for ever."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ContextOverflow, InternalFault, KvBudgetExceeded
from engine.events import Done
from engine.finish import FinishCause
from engine.params import SequenceParams
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.inside import rows_of
from tests.engine.rigs import cycle_engine
from tests.engine.scheduler.prompt_lookup_rigs import drafting
from tests.engine.scheduler.scheduler_rigs import Served, Told

CONTEXT = 24
TICKS = 400


def run(served: Served) -> None:
    for _ in range(TICKS):
        if served.scheduler.idle:
            return
        served.tick()
    pytest.fail("a row waits for nothing")


def expect(told: Told, prompt: int, bound: int, max_tokens: int | None) -> None:
    room = bound - prompt
    by_budget = max_tokens is not None and max_tokens <= room
    assert len(told.tokens) == (max_tokens if by_budget else room)
    assert isinstance(told.last, Done)
    cause = FinishCause.LENGTH if by_budget else FinishCause.CONTEXT_EXHAUSTED
    assert told.last.finish is cause


@pytest.mark.parametrize("is_drafting", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_prompt_that_all_but_fills_the_context_is_answered(tokenizer, rows, left, is_drafting):
    engine = cycle_engine(vocab=64, context=CONTEXT, tokenizer=tokenizer)
    lookup = drafting() if is_drafting else None
    settings = SchedulerSettings(Limits(parallel=4, short_tokens=0), lookup=lookup)
    served = Served(engine, settings=settings)
    prompt = tuple(range(CONTEXT - left))
    told = [served.submit(str(row), SequenceParams(prompt)) for row in range(rows)]
    run(served)
    for one in told:
        expect(one, len(prompt), CONTEXT, None)


@given(
    rows=st.lists(
        st.tuples(
            st.integers(1, CONTEXT + 1),
            st.none() | st.integers(0, CONTEXT),
            st.none() | st.integers(1, CONTEXT),
        ),
        min_size=1,
        max_size=5,
    ),
    parallel=st.integers(1, 4),
    is_drafting=st.booleans(),
    chunk=st.sampled_from([None, 1, 3, 8]),
    budget=st.none() | st.just(512),
)
def test_every_request_ends(tokenizer, rows, parallel, is_drafting, chunk, budget):
    engine = cycle_engine(vocab=64, context=CONTEXT, tokenizer=tokenizer)
    settings = SchedulerSettings(
        Limits(parallel=parallel, short_tokens=0),
        kv_budget_tokens=budget,
        lookup=drafting() if is_drafting else None,
    )
    served = Served(engine, settings=settings, chunk=chunk)
    expected = []
    for index, (length, max_tokens, own_bound) in enumerate(rows):
        bound = min(CONTEXT, own_bound or CONTEXT)
        prompt = tuple(token % 7 for token in range(length))
        params = SequenceParams(prompt, max_tokens=max_tokens, context_tokens=own_bound)
        if length >= bound:
            with pytest.raises((ContextOverflow, KvBudgetExceeded)):
                served.submit(str(index), params)
        else:
            expected.append((served.submit(str(index), params), length, bound, max_tokens))
    run(served)
    for told, length, bound, max_tokens in expected:
        expect(told, length, bound, max_tokens)


def test_a_row_that_may_take_no_step_ends_with_an_error_and_frees_its_slot(tokenizer):
    engine = cycle_engine(vocab=64, context=CONTEXT, tokenizer=tokenizer)
    served = Served(engine, chunk=1, parallel=1)
    told = served.submit("a", SequenceParams((1, 2, 3)))
    after = served.submit("b", SequenceParams((1, 2, 3), max_tokens=2))
    served.tick()
    for row in rows_of(engine).values():
        row.rules = replace(row.rules, context_tokens=1)
    run(served)
    assert isinstance(told.error, InternalFault)
    assert len(after.tokens) == 2
