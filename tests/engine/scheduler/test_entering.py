"""Who gets a slot when, and who is refused at once."""

import pytest

from engine.errors import ContextOverflow, InvalidParams, KvBudgetExceeded, QueueFull
from engine.events import Cancelled, Delta, Done, Failed, Started
from engine.params import SequenceParams
from engine.scheduler.queue import Priority
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.scheduler.scheduler_rigs import Served, Told, each_width, params, progress

# -- who enters when


@pytest.mark.parametrize(("wide", "tick"), [(True, 6), (False, 7)])
def test_a_short_request_beside_rows_that_decode_has_its_first_token_at_once(cycle, wide, tick):
    """Before the step that it joins, where that is the sooner; else from that step."""
    cycle.holds_steps = wide
    served = Served(cycle, parallel=4)
    old = [served.submit(f"old{i}", params(50)) for i in range(3)]
    for _ in range(5):
        served.tick()
    told = served.submit("new", params(5))
    served.tick()
    served.tick()
    assert told.tick_of(Delta) == tick
    assert [len(one.tokens) for one in old] == [6, 6, 6], "nobody's step was left out"
    served.run()
    assert told.tokens == [4, 5, 6, 7, 8]
    spent = told.done.timings
    assert 0 < spent.prompt_s < spent.ttft_s, "and no time is counted twice"


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_request_that_ends_with_its_first_token_takes_no_step_beside_others(cycle, tokens):
    served = Served(cycle, parallel=4)
    served.submit("old", params(50))
    for _ in range(3):
        served.tick()
    before = served.scheduler.stats().counters.decode_steps
    told = served.submit("new", params(tokens))
    served.tick()
    assert len(told.tokens) == told.done.usage.completion_tokens == tokens
    counters = served.scheduler.stats().counters
    assert counters.decode_steps == before + 1
    assert counters.decode_tokens == len(served.told["old"].tokens), "a drawn token is no step's"


def test_requests_that_come_together_share_the_step_of_their_first_tokens(cycle):
    served = Served(cycle, chunk=16, parallel=4)
    served.submit("old", params(50))
    for _ in range(3):
        served.tick()
    told = [served.submit(name, params(5)) for name in ("a", "b")]
    served.tick()
    served.tick()
    assert [one.tick_of(Delta) for one in told] == [5, 5]


def test_a_long_prefill_holds_up_no_short_request(cycle):
    served = Served(cycle, chunk=8, parallel=4, short_chunks=2)
    old = served.submit("old", params(100))
    for _ in range(3):
        served.tick()
    long = served.submit("long", params(3, prompt=tuple([1] * 100)))
    for _ in range(3):
        served.tick()
    told = served.submit("new", params(5))
    served.tick()
    assert told.tick_of(Delta) == 7
    served.tick()
    assert progress(long.events) == [8]
    deltas = [t for t, e in zip(old.ticks, old.events, strict=True) if isinstance(e, Delta)]
    assert deltas == list(range(2, 9))


def test_a_long_prefill_reads_a_chunk_each_interval(cycle):
    served = Served(cycle, chunk=8, parallel=2, short_chunks=1, grant_interval=4)
    served.submit("old", params(100))
    served.tick()
    told = served.submit("long", params(3, prompt=tuple([1] * 33)))
    served.run()
    ticks = [t for t, e in zip(told.ticks, told.events, strict=True) if not isinstance(e, Done)]
    # It enters in tick 2; a chunk is read once its tick is told, and told with the next one.
    assert ticks[:4] == [2, 3, 7, 11]
    assert served.scheduler.stats().counters.long_chunks == 4


def beside(cycle) -> tuple[Served, Told]:
    """A long prompt whose first chunk waits for the events of a tick to be told."""
    served = Served(cycle, chunk=8, parallel=2, short_chunks=1, grant_interval=1, flushes=False)
    served.submit("old", params(100))
    served.tick()
    told = served.submit("long", params(3, prompt=tuple([1] * 33)))
    served.tick()
    assert served.scheduler.stats().counters.long_chunks == 0
    return served, told


def test_a_long_chunk_is_read_when_the_tick_s_events_are_told(cycle):
    served, told = beside(cycle)
    served.scheduler.flush()
    assert served.scheduler.stats().counters.long_chunks == 1
    served.tick()
    assert progress(told.events) == [8]
    assert served.scheduler.stats().counters.long_chunks == 1


def test_a_long_chunk_is_read_by_the_next_tick_at_the_latest(cycle):
    served, told = beside(cycle)
    served.tick()
    assert progress(told.events) == [8]
    served.run()
    assert served.scheduler.stats().counters.long_chunks == 4


def test_a_long_prompt_that_is_cancelled_before_its_chunk_is_not_read(cycle):
    served, told = beside(cycle)
    served.scheduler.cancel("long")
    served.scheduler.flush()
    served.run()
    assert isinstance(told.events[-1], Cancelled)
    assert served.scheduler.stats().counters.long_chunks == 0


def test_a_long_chunk_that_fails_ends_its_own_request(cycle, monkeypatch):
    served, told = beside(cycle)
    with monkeypatch.context() as patch:
        patch.setattr(served.engine, "prefill", lambda *_: 1 / 0)
        served.scheduler.flush()
    served.run()
    assert isinstance(told.events[-1], Failed)
    assert isinstance(served.told["old"].events[-1], Done)


def test_the_last_chunk_of_a_long_prompt_lets_its_row_join_the_next_step(cycle):
    served, told = beside(cycle)
    while served.scheduler.stats().counters.long_chunks < 4:
        served.scheduler.flush()
        served.tick()
    read = served.ticks
    served.run()
    assert told.tick_of(Delta) == read + 1


def test_higher_priorities_go_first_and_equals_in_their_order(cycle):
    served = Served(cycle, parallel=1)
    order = [("a", Priority.LOW), ("b", Priority.NORMAL), ("c", Priority.HIGH), ("d", Priority.LOW)]
    told = [served.submit(id_, params(2), priority=priority) for id_, priority in order]
    served.run()
    starts = [one.tick_of(Started) for one in told]
    assert sorted(range(4), key=starts.__getitem__) == [2, 1, 0, 3]


@each_width
def test_no_more_rows_run_than_there_are_slots(cycle, parallel: int):
    served = Served(cycle, parallel=parallel)
    for i in range(10):
        served.submit(str(i), params(5))
    widest = 0
    while not served.scheduler.idle:
        served.tick()
        widest = max(widest, len(served.scheduler.stats().slots))
    assert widest == parallel


def test_the_queue_is_bounded_and_free_slots_are_no_queue(cycle):
    served = Served(cycle, settings=SchedulerSettings(Limits(parallel=2), queue_depth=1))
    for i in range(3):
        served.submit(str(i), params(5))
    with pytest.raises(QueueFull):
        served.submit("3", params(5))
    served.tick()
    assert served.scheduler.stats().queue_depth == 1
    with pytest.raises(QueueFull):
        served.submit("4", params(5))
    assert served.scheduler.stats().counters.refused == 2


def test_rows_that_would_pass_the_kv_budget_wait_for_their_turn(cycle):
    """Rows of 256 positions, and a budget for two of them."""
    settings = SchedulerSettings(Limits(parallel=4), kv_budget_tokens=512)
    served = Served(cycle, settings=settings)
    told = [served.submit(str(i), params(5)) for i in range(5)]
    widest = 0
    while not served.scheduler.idle:
        served.tick()
        stats = served.scheduler.stats()
        widest = max(widest, len(stats.slots))
        assert stats.kv_rows * stats.kv_positions <= 512
    assert widest == 2
    assert [one.tokens for one in told] == [[4, 5, 6, 7, 8]] * 5


# -- what is refused at once


@pytest.mark.parametrize(
    ("request_params", "error"),
    [
        pytest.param(SequenceParams((99,)), InvalidParams, id="a token outside the vocabulary"),
        pytest.param(SequenceParams(tuple([1] * 512)), ContextOverflow, id="a full context"),
        pytest.param(SequenceParams(tuple([1] * 300)), KvBudgetExceeded, id="no such KV budget"),
    ],
)
def test_what_can_never_run_is_refused_when_it_is_submitted(cycle, request_params, error):
    settings = SchedulerSettings(Limits(), kv_budget_tokens=256)
    served = Served(cycle, settings=settings)
    with pytest.raises(error):
        served.submit("a", request_params)
    assert served.scheduler.idle


def test_an_id_in_use_is_refused(cycle):
    served = Served(cycle, parallel=1)
    scheduler = served.scheduler
    served.submit("a", params(5))
    with pytest.raises(InvalidParams, match="in use"):
        scheduler.submit(ScheduledRequest("a", params(5)))
    with pytest.raises(InvalidParams, match="in use"):
        scheduler.submit(ScheduledRequest("b", params(5)), ScheduledRequest("b", params(5)))
    served.run()
    served.submit("a", params(5))
    served.run()


def test_several_requests_are_taken_together_or_not_at_all(cycle):
    scheduler = Served(cycle).scheduler
    with pytest.raises(InvalidParams):
        scheduler.submit(
            ScheduledRequest("a", params(5)), ScheduledRequest("b", SequenceParams((99,)))
        )
    assert scheduler.stats().queue_depth == 0


def test_a_crowd_that_no_later_try_would_find_room_for_is_no_full_queue(cycle):
    served = Served(cycle, settings=SchedulerSettings(Limits(parallel=2), queue_depth=1))
    crowd = [ScheduledRequest(str(i), params(5)) for i in range(4)]
    with pytest.raises(InvalidParams, match="4 answers at once; at most 3 fit"):
        served.scheduler.submit(*crowd)
    served.scheduler.submit(*crowd[:3])
    assert served.scheduler.stats().counters.refused == 4
