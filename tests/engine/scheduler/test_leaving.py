"""Cancelling, holding, draining, and what the scheduler says of itself."""

import pytest

from engine.errors import EngineClosed
from engine.events import Cancelled
from engine.finish import FinishCause
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from engine.scheduler.stats import SchedulerPhase
from tests.engine.rigs import tiny_engine
from tests.engine.scheduler.scheduler_rigs import (
    Clock,
    Served,
    alone,
    each_width,
    mixed_requests,
    params,
)

# -- cancelling and holding


@each_width
def test_a_cancelled_row_s_slot_is_free_before_the_next_tick(cycle, parallel: int):
    served = Served(cycle, parallel=parallel)
    told = served.submit("a", params(100))
    for _ in range(4):
        served.tick()
    served.scheduler.cancel("a")
    assert served.scheduler.stats().slots == ()
    served.run()
    assert isinstance(told.last, Cancelled)
    assert told.last.usage.completion_tokens == 3


def test_a_request_is_cancelled_wherever_it_stands(cycle):
    served = Served(cycle, chunk=8, parallel=2, short_chunks=1)
    decoding = served.submit("decoding", params(50))
    long = served.submit("long", params(50, prompt=tuple([1] * 100)))
    queued = served.submit("queued", params(50))
    for _ in range(3):
        served.tick()
    assert len(served.scheduler.stats().slots) == 2
    for id_ in ("queued", "long", "decoding", "nobody"):
        served.scheduler.cancel(id_)
    served.run()
    assert [type(one.last) for one in (decoding, long, queued)] == [Cancelled] * 3
    assert served.scheduler.stats().counters.cancelled == 3


def test_a_step_in_flight_that_is_nobody_s_any_more_is_not_waited_for(cycle, monkeypatch):
    served = Served(cycle, parallel=4)
    for id_ in ("a", "b"):
        served.submit(id_, params(100))
    for _ in range(3):
        served.tick()

    read: list[object] = []
    monkeypatch.setattr(cycle, "collect", read.append)
    served.scheduler.cancel("a")
    served.scheduler.cancel("b")
    served.run()
    assert read == []
    assert [type(one.last) for one in served.told.values()] == [Cancelled] * 2


def test_cancelling_twice_is_told_once(cycle):
    served = Served(cycle)
    told = served.submit("a", params(50))
    served.tick()
    served.scheduler.cancel("a")
    served.scheduler.cancel("a")
    served.run()
    assert [type(event) for event in told.events].count(Cancelled) == 1


def test_neighbours_of_a_cancelled_row_do_not_notice(tokenizer):
    requests = mixed_requests(4)
    solo = [alone(tiny_engine(tokenizer=tokenizer), one)[0] for one in requests[1:]]
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=4)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests)]
    served.tick()
    served.tick()
    served.scheduler.cancel("r0")
    served.run()
    assert [one.text for one in told[1:]] == solo


def test_a_held_row_keeps_its_slot_and_goes_on_when_it_is_released(cycle):
    served = Served(cycle, parallel=2)
    held, other = served.submit("held", params(30)), served.submit("other", params(8))
    for _ in range(4):
        served.tick()
    served.scheduler.pause("held")
    served.run()
    assert other.is_over
    assert len(held.tokens) == 4
    assert [slot.is_paused for slot in served.scheduler.stats().slots] == [True]
    served.scheduler.resume("held")
    served.run()
    assert held.tokens == [(4 + i) % 16 for i in range(30)]


@pytest.mark.parametrize("released", ["while it waits", "once it is back"])
def test_a_held_row_that_is_preempted_stays_held_until_it_is_released(cycle, released):
    limits = Limits(1, preemption=PreemptionPolicy.LONGEST_FIRST, short_tokens=0)
    served = Served(cycle, settings=SchedulerSettings(limits))
    held = served.submit("held", params(30), priority=Priority.LOW)
    for _ in range(4):
        served.tick()
    served.scheduler.pause("held")
    other = served.submit("other", params(30), priority=Priority.HIGH)
    while not other.events:
        served.tick()
    if released == "once it is back":
        served.run()
        assert len(held.tokens) < 7
    served.scheduler.resume("held")
    served.run()
    assert len(other.tokens) == 30
    assert held.tokens == [(4 + i) % 16 for i in range(30)]


def test_a_request_that_is_held_before_it_has_a_slot_waits_there_for_its_reader(cycle):
    # One choice of several, whose client is behind with the others.
    served = Served(cycle, parallel=1)
    served.submit("first", params(8))
    late = served.submit("late", params(30))
    served.scheduler.pause("late")
    served.run()
    assert len(late.tokens) <= 1
    served.scheduler.resume("late")
    served.run()
    assert len(late.tokens) == 30


def test_a_held_row_can_be_cancelled(cycle):
    served = Served(cycle, parallel=1)
    held, waiting = served.submit("held", params(30)), served.submit("next", params(3))
    for _ in range(4):
        served.tick()
    served.scheduler.pause("held")
    served.run()
    served.scheduler.cancel("held")
    served.run()
    assert isinstance(held.last, Cancelled)
    assert waiting.done


# -- its end


def test_a_drain_refuses_new_requests_and_finishes_the_rest(cycle):
    served = Served(cycle, parallel=1)
    running, waiting = served.submit("a", params(20)), served.submit("b", params(20))
    served.tick()
    served.scheduler.drain()
    with pytest.raises(EngineClosed):
        served.submit("c", params(5))
    assert not served.scheduler.is_drained
    served.run()
    assert running.tokens == [(4 + i) % 16 for i in range(20)]
    assert isinstance(waiting.error, EngineClosed)
    assert served.scheduler.is_drained
    assert served.scheduler.phase is SchedulerPhase.DRAINING


def test_what_outlasts_the_deadline_of_a_drain_is_ended(cycle):
    clock = Clock()
    served = Served(cycle, clock=clock)
    told = served.submit("a", params(200))
    for _ in range(3):
        served.tick()
    served.scheduler.drain(deadline_s=10.0)
    served.tick()
    assert not told.is_over
    clock.now_s = 10.0
    served.tick()
    assert isinstance(told.error, EngineClosed)
    assert served.scheduler.is_drained


def test_an_idle_scheduler_is_drained_at_once(cycle):
    served = Served(cycle)
    served.scheduler.drain()
    served.run()
    assert served.scheduler.is_drained


# -- what it says of itself


def test_stats_are_a_snapshot(cycle):
    served = Served(cycle, parallel=2)
    for i in range(4):
        served.submit(str(i), params(4))
    served.tick()
    before = served.scheduler.stats()
    assert [slot.slot for slot in before.slots] == [0, 1]
    assert (before.slots_free, before.queue_depth) == (0, 2)
    served.run()
    assert before.queue_depth == 2
    assert before.counters.finished == {}
    after = served.scheduler.stats()
    assert after.counters.finished == {FinishCause.LENGTH: 4}
    assert after.counters.completion_tokens == after.counters.decode_tokens == 16
    assert after.counters.prompt_tokens == 12


def test_an_idle_scheduler_holds_no_kv(cycle):
    served = Served(cycle, parallel=2)
    served.submit("a", params(4))
    served.run()
    stats = served.scheduler.stats()
    assert (stats.kv_rows, stats.kv_positions) == (0, 0)
    assert cycle.choice.storage.arrays() == []


def test_slack_is_told_only_while_somebody_could_enter(cycle):
    clock = Clock(step_s=0.01)
    served = Served(cycle, clock=clock, parallel=2)
    served.submit("a", params(40))
    for _ in range(12):
        served.tick()
    assert served.scheduler.slack_s() == 0.0  # the host's share of this clock is too large
    served.submit("b", params(40))
    assert served.scheduler.slack_s() == 0.0
