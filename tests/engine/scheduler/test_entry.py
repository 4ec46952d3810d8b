"""Requests are validated before they wait; rows come from one pool, cached or not."""

from pathlib import Path

import pytest

from engine.errors import ContextOverflow, InvalidParams, KvBudgetExceeded
from engine.params import SequenceParams
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.budget import KvShape
from engine.scheduler.entry import GROWTH_TOKENS, RowPool, Validation
from engine.scheduler.job import Job
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import byte_tokenizer, cycle_engine, prefill, tiny_engine
from tests.engine.scheduler.scheduler_rigs import Clock

IDS = tuple(range(20))


@pytest.fixture
def engine(tokenizer):
    return tiny_engine(tokenizer=tokenizer)


def job(**kw) -> Job:
    params = SequenceParams(IDS, max_tokens=4)
    request = ScheduledRequest("a", params, **kw)
    return Job(request, params, bound=99, growth_tokens=None, now_s=0.0)


def read_and_close(engine, rows: RowPool, one: Job, *, keeps: bool = True) -> None:
    seq = rows.open(one)
    prefill(engine, seq, cached=engine.cached_tokens(seq))
    rows.close(seq, keeps=keeps)
    rows.cache.settle()


def test_without_a_cache_rows_are_the_engine_s(engine):
    rows = RowPool(engine, PromptCache(engine, None))
    for _ in range(2):
        read_and_close(engine, rows, job())
    assert engine.cached_tokens(rows.open(job())) == 0
    assert rows.waiting_state(job()).prefill_tokens == 20
    assert rows.cache.stats() is None
    rows.cache.reset()


def test_with_one_the_next_row_begins_where_the_last_one_was(engine):
    rows = RowPool(engine, PromptCache(engine, CacheLimits(min_tokens=1), clock=Clock()))
    read_and_close(engine, rows, job())
    assert rows.waiting_state(job()).prefill_tokens == 1
    assert engine.cached_tokens(rows.open(job())) == 19
    rows.cache.reset()
    assert rows.waiting_state(job()).prefill_tokens == 20


def test_a_row_that_ended_badly_leaves_nothing(engine):
    rows = RowPool(engine, PromptCache(engine, CacheLimits(min_tokens=1), clock=Clock()))
    read_and_close(engine, rows, job(), keeps=False)
    assert rows.cache.stats().nbytes == 0


def test_who_opts_out_has_a_row_like_any(engine):
    rows = RowPool(engine, PromptCache(engine, CacheLimits(min_tokens=1), clock=Clock()))
    read_and_close(engine, rows, job(cache=None))
    assert rows.cache.stats().nbytes == 0


def test_a_suspended_row_is_remembered_when_it_has_gone_on(engine):
    rows = RowPool(engine, PromptCache(engine, CacheLimits(min_tokens=1), clock=Clock()))
    one = job()
    seq = rows.open(one)
    prefill(engine, seq)
    one.preempted = rows.preempt(seq)
    assert not rows.cache._rows
    seq = rows.open(one)
    assert engine.cached_tokens(seq) == 0
    prefill(engine, seq)
    rows.close(seq, keeps=True)
    rows.cache.advance()
    assert engine.cached_tokens(rows.open(job())) == 19


# -- validation


@pytest.fixture
def cycle(tmp_path: Path):
    return cycle_engine(tokenizer=byte_tokenizer(tmp_path), context=2000)


def validation(engine, **kw) -> Validation:
    return Validation(engine, SchedulerSettings(**kw), lambda: 7.0)


def asks(tokens: int = 3, **kw) -> ScheduledRequest:
    return ScheduledRequest("a", SequenceParams(tuple([1] * tokens), **kw))


def test_a_request_that_can_run_gets_a_seed_a_bound_and_its_time(cycle):
    job = validation(cycle).job(asks())
    assert job.params.sampling.seed is not None
    assert job.params.context_tokens == 2000
    assert job.submitted_s == 7.0


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(asks(2000), ContextOverflow, id="the context is full"),
        pytest.param(asks(1000), KvBudgetExceeded, id="the budget is smaller"),
        pytest.param(asks(stop_ids=frozenset({99})), InvalidParams, id="no such token"),
    ],
)
def test_a_request_that_never_can_is_refused_by_name(cycle, request_, error):
    with pytest.raises(error):
        validation(cycle, kv_budget_tokens=512).job(request_)


def test_the_budget_is_part_of_the_row_s_bound(cycle):
    assert validation(cycle, kv_budget_tokens=512).job(asks()).params.context_tokens == 512


def test_rows_that_can_be_preempted_need_room_for_some_tokens_only(cycle):
    limits = Limits(preemption=PreemptionPolicy.LONGEST_FIRST)
    assert (
        validation(cycle, limits=limits).job(asks()).waiting_state().room_tokens
        == 3 + GROWTH_TOKENS
    )
    assert validation(cycle).job(asks()).waiting_state().room_tokens == 2000


def test_an_idle_pool_holds_nothing(cycle):
    one = validation(cycle)
    assert one.shape(0) == KvShape()
    seq = cycle.open(asks().params)
    assert one.shape(1) == KvShape(1, 512)
    cycle.close(seq)
