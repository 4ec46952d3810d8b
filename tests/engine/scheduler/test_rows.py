"""Rows open and close through one door, with a prompt cache behind it or without."""

import pytest

from engine.params import SequenceParams
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.job import Job
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.rows import Rows
from tests.engine.rigs import prefill, tiny_engine
from tests.engine.scheduler.scheduler_rigs import Clock

IDS = tuple(range(20))


@pytest.fixture
def engine(tokenizer):
    return tiny_engine(tokenizer=tokenizer)


def job(**kw) -> Job:
    params = SequenceParams(IDS, max_tokens=4)
    request = ScheduledRequest("a", params, **kw)
    return Job(request, params, bound=99, growth_tokens=None, now_s=0.0)


def read_and_close(engine, rows: Rows, one: Job, *, keeps: bool = True) -> None:
    seq = rows.open(one)
    prefill(engine, seq, cached=rows.cached_tokens(seq))
    rows.close(seq, keeps=keeps)
    while rows.is_copying:
        rows.advance()


def test_without_a_cache_rows_are_the_engine_s(engine):
    rows = Rows(engine, None, Clock())
    for _ in range(2):
        read_and_close(engine, rows, job())
    assert rows.cached_tokens(rows.open(job())) == 0
    assert rows.waiting_state(job()).prefill_tokens == 20
    assert rows.stats() is None
    rows.forget()


def test_with_one_the_next_row_begins_where_the_last_one_was(engine):
    rows = Rows(engine, CacheLimits(min_tokens=1), Clock())
    read_and_close(engine, rows, job())
    assert rows.waiting_state(job()).prefill_tokens == 1
    assert rows.cached_tokens(rows.open(job())) == 19
    rows.forget()
    assert rows.waiting_state(job()).prefill_tokens == 20


def test_a_row_that_ended_badly_leaves_nothing(engine):
    rows = Rows(engine, CacheLimits(min_tokens=1), Clock())
    read_and_close(engine, rows, job(), keeps=False)
    assert rows.stats().nbytes == 0


def test_who_opts_out_has_a_row_like_any(engine):
    rows = Rows(engine, CacheLimits(min_tokens=1), Clock())
    read_and_close(engine, rows, job(cache=None))
    assert rows.stats().nbytes == 0


def test_a_suspended_row_is_remembered_when_it_has_gone_on(engine):
    rows = Rows(engine, CacheLimits(min_tokens=1), Clock())
    one = job()
    seq = rows.open(one)
    prefill(engine, seq)
    one.suspended = rows.suspend(seq)
    assert not rows._cache._rows
    seq = rows.open(one)
    assert rows.cached_tokens(seq) == 0
    prefill(engine, seq)
    rows.close(seq, keeps=True)
    rows.advance()
    assert rows.cached_tokens(rows.open(job())) == 19
