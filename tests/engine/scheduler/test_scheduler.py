"""The rules of ticks, on the cycle model where the text is known, and against solo answers."""

from pathlib import Path

import pytest

from engine.errors import (
    ContextOverflow,
    EngineClosed,
    InvalidParams,
    KvBudgetExceeded,
    QueueFull,
)
from engine.finish import FinishCause
from engine.params import SamplingParams, SequenceParams, SpeculationParams
from engine.scheduler.queue import Priority
from engine.scheduler.request import Cancelled, Delta, Done, ScheduledRequest, Started
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from engine.scheduler.stats import SchedulerPhase
from tests.engine.rigs import byte_tokenizer, cycle_engine, tiny_engine
from tests.engine.scheduler.scheduler_rigs import (
    Clock,
    Served,
    alone,
    mixed_requests,
    progress,
    seeds,
)

each_width = pytest.mark.parametrize("parallel", [1, 4])

PROMPT = (1, 2, 3)


@pytest.fixture
def tokenizer(tmp_path: Path):
    return byte_tokenizer(tmp_path)


@pytest.fixture
def cycle(tokenizer):
    """Token t is followed by t + 1; 8 bit tokens are text."""
    return cycle_engine(tokenizer=tokenizer)


def params(tokens: int = 5, prompt: tuple[int, ...] = PROMPT, **kw) -> SequenceParams:
    return SequenceParams(prompt, max_tokens=tokens, **kw)


# -- the same answers as alone


@each_width
def test_sixteen_requests_equal_their_solo_answers(tokenizer, parallel: int):
    requests = mixed_requests(16)
    solo = [alone(tiny_engine(tokenizer=tokenizer), one) for one in requests]
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=parallel)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests)]
    served.run()
    assert [one.text for one in told] == [text for text, _ in solo]
    assert [one.done.finish for one in told] == [answer.finish for _, answer in solo]
    assert [one.done.usage for one in told] == [answer.usage for _, answer in solo]


@each_width
def test_choices_of_one_prompt_differ_by_their_choice_and_not_by_their_company(
    tokenizer, parallel: int
):
    drawn = SamplingParams(temperature=1.0, seed=7)
    choices = [params(8, sampling=drawn, choice=i) for i in range(3)]
    solo = [alone(tiny_engine(tokenizer=tokenizer), one)[0] for one in choices]
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=parallel)
    told = [served.submit(f"r-{i}", one) for i, one in enumerate(choices)]
    served.run()
    assert [one.text for one in told] == solo
    assert len(set(solo)) == 3


@each_width
def test_stop_strings_end_an_answer_and_are_not_shown(cycle, parallel: int):
    served = Served(cycle, parallel=parallel)
    told = [served.submit(str(i), params(50), stops=("\x06\x07",)) for i in range(3)]
    served.run()
    assert [one.text for one in told] == ["\x04\x05"] * 3
    assert told[0].done.finish is FinishCause.STOP_SEQUENCE
    assert told[0].done.stop_match == "\x06\x07"


@each_width
def test_an_end_token_is_no_text(tokenizer, parallel: int):
    served = Served(cycle_engine(tokenizer=tokenizer, eos={7}), parallel=parallel)
    told = [served.submit(str(i), params(50)) for i in range(3)]
    served.run()
    assert [one.tokens for one in told] == [[4, 5, 6]] * 3
    assert [one.done.finish for one in told] == [FinishCause.EOS] * 3


def test_logprobs_come_with_their_tokens(tokenizer):
    asks = SamplingParams(logprobs=2)
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=4)
    told = served.submit("a", params(6, sampling=asks))
    other = served.submit("b", params(6))
    served.run()
    assert [one.chosen.token for one in told.logprobs] == told.tokens
    assert all(len(one.top) == 2 for one in told.logprobs)
    assert other.logprobs == []


# -- events


@each_width
def test_a_request_is_told_start_text_and_end_in_that_order(cycle, parallel: int):
    served = Served(cycle, parallel=parallel)
    told = served.submit("a", params(3))
    served.run()
    kinds = [type(event) for event in told.events]
    assert kinds == [Started, Delta, Delta, Delta, Done]
    assert [e.completion_tokens for e in told.events if isinstance(e, Delta)] == [1, 2, 3]


def test_a_tick_tells_each_request_once(cycle):
    served = Served(cycle, parallel=4)
    for i in range(4):
        served.submit(str(i), params(9))
    served.tick()
    for _ in range(5):
        events = served.tick()
        assert sorted(event.id for event in events) == ["0", "1", "2", "3"]


def test_a_seed_that_was_drawn_is_told_and_gives_the_same_text_again(tokenizer):
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=4)
    drawn = SamplingParams(temperature=1.0)
    first = served.submit("a", params(8, sampling=drawn))
    served.run()
    (seed,) = seeds(first.events)
    assert first.done.seed == seed
    again = served.submit("b", params(8, sampling=SamplingParams(temperature=1.0, seed=seed)))
    served.run()
    assert again.text == first.text


def test_progress_is_told_for_each_piece(cycle):
    served = Served(cycle, chunk=8, parallel=4)
    told = served.submit("a", params(2, prompt=tuple([1] * 30)))
    served.run()
    assert progress(told.events) == [8, 16, 24]


@each_width
def test_no_token_is_written_for_max_tokens_0(cycle, parallel: int):
    served = Served(cycle, parallel=parallel)
    told = served.submit("a", params(0))
    served.run()
    assert [type(event) for event in told.events] == [Started, Done]
    assert told.done.finish is FinishCause.LENGTH
    assert told.done.usage.completion_tokens == 0
    assert served.scheduler.stats().counters.decode_steps == 0


def test_a_full_context_is_told_as_truncated(tokenizer):
    served = Served(cycle_engine(tokenizer=tokenizer, context=10), parallel=2)
    told = served.submit("a", SequenceParams(PROMPT))
    served.run()
    assert told.done.finish is FinishCause.CONTEXT_EXHAUSTED
    assert told.done.truncated


def test_times_add_up(cycle):
    clock = Clock(step_s=0.01)
    served = Served(cycle, clock=clock, parallel=1)
    first, second = served.submit("a", params(6)), served.submit("b", params(6))
    served.run()
    for told in (first, second):
        times = told.done.timings
        assert 0 < times.prompt_s <= times.ttft_s - told.done.queue_s + 1e-9
        assert times.predicted_s > 0
        assert (times.prompt_n, times.predicted_n) == (3, 6)
    assert second.done.queue_s > first.done.timings.predicted_s


# -- the pipeline


def test_a_lone_request_of_n_tokens_makes_at_least_n_minus_3_lookahead_steps(cycle):
    served = Served(cycle, parallel=4)
    served.submit("a", params(128))
    served.run()
    assert served.scheduler.stats().counters.lookahead_steps >= 125


def test_a_context_bound_does_not_cost_the_pipeline(cycle):
    served = Served(cycle, parallel=4)
    served.submit("a", params(128, context_tokens=200))
    served.run()
    assert served.scheduler.stats().counters.lookahead_steps >= 125


def test_company_that_comes_and_goes_does_not_cost_the_pipeline(cycle):
    """S3: a neighbour enters, leaves or is cancelled every few ticks."""
    served = Served(cycle, parallel=4)
    told = served.submit("a", params(128))
    for i in range(40):
        served.submit(f"b{i}", params(1 + i % 5))
        served.tick()
        served.tick()
        if i % 3 == 0:
            served.scheduler.cancel(f"b{i}")
    served.run()
    assert told.tokens == [(4 + i) % 16 for i in range(128)]
    counters = served.scheduler.stats().counters
    assert counters.decode_steps - counters.lookahead_steps == 1


def test_no_step_follows_the_token_that_spends_the_budget(cycle):
    served = Served(cycle, parallel=4)
    served.submit("a", params(10))
    served.run()
    assert served.scheduler.stats().counters.decode_steps == 10


def test_unpipelined_ticks_give_the_same_text(tokenizer):
    texts = []
    for is_pipelined in (True, False):
        settings = SchedulerSettings(Limits(parallel=3), is_pipelined=is_pipelined)
        served = Served(tiny_engine(tokenizer=tokenizer), settings=settings)
        told = [served.submit(f"r{i}", one) for i, one in enumerate(mixed_requests(6))]
        served.run()
        texts.append([one.text for one in told])
        lookahead = served.scheduler.stats().counters.lookahead_steps
        assert (lookahead > 0) == is_pipelined
    assert texts[0] == texts[1]


# -- who enters when


def test_a_short_request_beside_rows_that_decode_has_its_first_token_two_ticks_later(cycle):
    """The tick that is running, and the one whose step it joins."""
    served = Served(cycle, parallel=4)
    for i in range(3):
        served.submit(f"old{i}", params(50))
    for _ in range(5):
        served.tick()
    told = served.submit("new", params(5))
    served.tick()
    served.tick()
    assert told.tick_of(Delta) == 7


def test_a_parked_prefill_holds_up_no_short_request(cycle):
    served = Served(cycle, chunk=8, parallel=4, short_pieces=2)
    old = served.submit("old", params(100))
    for _ in range(3):
        served.tick()
    long = served.submit("long", params(3, prompt=tuple([1] * 100)))
    for _ in range(3):
        served.tick()
    told = served.submit("new", params(5))
    served.tick()
    served.tick()
    assert told.tick_of(Delta) == 8
    assert progress(long.events) == [8]
    deltas = [t for t, e in zip(old.ticks, old.events, strict=True) if isinstance(e, Delta)]
    assert deltas == list(range(2, 9))


def test_a_parked_prefill_reads_a_piece_each_interval(cycle):
    served = Served(cycle, chunk=8, parallel=2, short_pieces=1, grant_interval=4)
    served.submit("old", params(100))
    served.tick()
    told = served.submit("long", params(3, prompt=tuple([1] * 33)))
    served.run()
    ticks = [t for t, e in zip(told.ticks, told.events, strict=True) if not isinstance(e, Done)]
    assert ticks[:4] == [2, 2, 6, 10]
    assert served.scheduler.stats().counters.parked_pieces == 4


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
        pytest.param(
            SequenceParams((1,), speculation=SpeculationParams()), InvalidParams, id="drafting"
        ),
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
    served = Served(cycle, chunk=8, parallel=2, short_pieces=1)
    decoding = served.submit("decoding", params(50))
    parked = served.submit("parked", params(50, prompt=tuple([1] * 100)))
    queued = served.submit("queued", params(50))
    for _ in range(3):
        served.tick()
    assert len(served.scheduler.stats().slots) == 2
    for id_ in ("queued", "parked", "decoding", "nobody"):
        served.scheduler.cancel(id_)
    served.run()
    assert [type(one.last) for one in (decoding, parked, queued)] == [Cancelled] * 3
    assert served.scheduler.stats().counters.cancelled == 3


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
    served.scheduler.hold("held")
    served.run()
    assert other.is_over
    assert len(held.tokens) == 4
    assert [slot.is_held for slot in served.scheduler.stats().slots] == [True]
    served.scheduler.release("held")
    served.run()
    assert held.tokens == [(4 + i) % 16 for i in range(30)]


def test_a_held_row_can_be_cancelled(cycle):
    served = Served(cycle, parallel=1)
    held, waiting = served.submit("held", params(30)), served.submit("next", params(3))
    for _ in range(4):
        served.tick()
    served.scheduler.hold("held")
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
