from pathlib import Path

import pytest

from engine.errors import ContextOverflow, InvalidParams, KvBudgetExceeded
from engine.params import SequenceParams, SpeculationParams
from engine.scheduler.budget import KvShape
from engine.scheduler.intake import GROWTH_TOKENS, Intake
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import byte_tokenizer, cycle_engine


@pytest.fixture
def engine(tmp_path: Path):
    return cycle_engine(tokenizer=byte_tokenizer(tmp_path), context=2000)


def intake(engine, **kw) -> Intake:
    return Intake(engine, SchedulerSettings(**kw), lambda: 7.0)


def asks(tokens: int = 3, **kw) -> ScheduledRequest:
    return ScheduledRequest("a", SequenceParams(tuple([1] * tokens), **kw))


def test_a_request_that_can_run_gets_a_seed_a_bound_and_its_time(engine):
    job = intake(engine).job(asks())
    assert job.params.sampling.seed is not None
    assert job.params.context_tokens == 2000
    assert job.submitted_s == 7.0


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(asks(2000), ContextOverflow, id="the context is full"),
        pytest.param(asks(1000), KvBudgetExceeded, id="the budget is smaller"),
        pytest.param(asks(stop_ids=frozenset({99})), InvalidParams, id="no such token"),
        pytest.param(asks(speculation=SpeculationParams()), InvalidParams, id="drafting"),
    ],
)
def test_a_request_that_never_can_is_refused_by_name(engine, request_, error):
    with pytest.raises(error):
        intake(engine, kv_budget_tokens=512).job(request_)


def test_the_budget_is_part_of_the_row_s_bound(engine):
    assert intake(engine, kv_budget_tokens=512).job(asks()).params.context_tokens == 512


def test_rows_that_can_be_preempted_need_room_for_some_tokens_only(engine):
    limits = Limits(preemption=PreemptionPolicy.LONGEST_FIRST)
    assert (
        intake(engine, limits=limits).job(asks()).waiting_state().room_tokens == 3 + GROWTH_TOKENS
    )
    assert intake(engine).job(asks()).waiting_state().room_tokens == 2000


def test_an_idle_pool_holds_nothing(engine):
    one = intake(engine)
    assert one.shape(0) == KvShape()
    seq = engine.open(asks().params)
    assert one.shape(1) == KvShape(1, 512)
    engine.close(seq)
