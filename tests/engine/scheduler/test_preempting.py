"""Preempted rows continue as if nothing had happened: no text is repeated, lost or changed."""

import pytest

from engine.events import Cancelled, Delta, Done, Started
from engine.finish import FinishCause
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import cycle_engine, tiny_engine
from tests.engine.scheduler.scheduler_rigs import Served, alone, mixed_requests

each_policy = pytest.mark.parametrize("policy", PreemptionPolicy)


def preempting(
    engine, policy=PreemptionPolicy.LONGEST_FIRST, *, parallel: int = 1, chunk: int = 8, **kw
) -> Served:
    limits = Limits(parallel=parallel, preemption=policy, short_tokens=0)
    return Served(engine, chunk=chunk, settings=SchedulerSettings(limits, **kw))


def interrupted(served: Served, params: SequenceParams, *, at: list[int], **kw):
    """A low request that is preempted to a high one after so many ticks, again and again."""
    told = served.submit("low", params, priority=Priority.LOW, **kw)
    for number in range(2000):
        if served.scheduler.idle:
            break
        if number in at:
            one = SequenceParams((5, 6, 7), max_tokens=3)
            served.submit(f"high{number}", one, priority=Priority.HIGH)
        served.tick()
    return told


@pytest.mark.parametrize("at", [[1], [3], [4, 12], [2, 8, 14, 20]], ids=str)
@pytest.mark.parametrize("kind", range(6))
def test_a_preempted_answer_is_the_one_it_would_have_been(tokenizer, kind: int, at: list[int]):
    """Greedy, seeded, penalised, DRY, logprobs, mirostat."""
    params = mixed_requests(6)[kind]
    params = SequenceParams(params.prompt_ids, params.sampling, max_tokens=20)
    text, answer = alone(tiny_engine(tokenizer=tokenizer), params)
    served = preempting(tiny_engine(tokenizer=tokenizer))
    told = interrupted(served, params, at=at)
    assert served.scheduler.stats().counters.preemptions == len(at)
    assert told.text == text
    assert told.done.usage == answer.usage
    assert told.done.finish is answer.finish
    assert [type(event) for event in told.events].count(Started) == 1


@pytest.mark.parametrize("at", range(2, 9))
def test_a_stop_string_across_the_preemption_is_found(tokenizer, at: int):
    engine = cycle_engine(tokenizer=tokenizer)
    params = SequenceParams((1, 2, 3), max_tokens=60)
    told = interrupted(preempting(engine), params, at=[at], stops=("\x06\x07\x08",))
    assert told.text == "\x04\x05"
    assert told.done.stop_match == "\x06\x07\x08"


@pytest.mark.parametrize("at", range(2, 8))
def test_a_character_across_the_preemption_is_whole(tokenizer, at: int):
    """The snowman's three bytes, one token each."""
    snowman = "\N{SNOWMAN}".encode()
    bias = {snowman[0]: 100.0}
    engine = tiny_engine(tokenizer=tokenizer)
    params = SequenceParams((1, 2), SamplingParams(logit_bias=bias), max_tokens=9)
    text, _ = alone(tiny_engine(tokenizer=tokenizer), params)
    assert interrupted(preempting(engine), params, at=[at]).text == text


@pytest.mark.parametrize("at", range(2, 12))
def test_a_repetition_loop_counts_what_was_written_before(tokenizer, at: int):
    engine = cycle_engine(tokenizer=tokenizer, vocab=16, period=4)
    params = SequenceParams((0,), max_tokens=60, loop=LoopRule(1, 4, 3))
    told = interrupted(preempting(engine), params, at=[at])
    assert told.done.finish is FinishCause.REPETITION_LOOP
    assert told.done.usage.completion_tokens == 12


def test_min_tokens_counts_what_was_written_before(tokenizer):
    params = SequenceParams((1, 2, 3), max_tokens=60, min_tokens=10)
    engine = cycle_engine(tokenizer=tokenizer, eos={6})
    text, answer = alone(cycle_engine(tokenizer=tokenizer, eos={6}), params)
    told = interrupted(preempting(engine), params, at=[5])
    assert (told.text, told.done.finish) == (text, answer.finish)


def test_a_long_prompt_that_gives_way_is_read_again(tokenizer):
    params = SequenceParams(tuple(range(100)), max_tokens=8)
    text, _ = alone(tiny_engine(tokenizer=tokenizer), params)
    served = preempting(tiny_engine(tokenizer=tokenizer))
    told = interrupted(served, params, at=[2, 9])
    assert told.text == text


@each_policy
def test_rows_that_outgrow_the_budget_take_turns_and_all_finish(tokenizer, policy):
    """Budget for two rows of 512 positions; each of three needs more in the end."""
    requests = [
        SequenceParams(tuple([1 + i] * 250), SamplingParams(seed=i), max_tokens=280)
        for i in range(3)
    ]
    engine = tiny_engine(tokenizer=tokenizer, context=600)
    served = preempting(engine, policy, parallel=4, chunk=128, kv_budget_tokens=1024)
    told = [served.submit(str(i), one) for i, one in enumerate(requests)]
    while not served.scheduler.idle:
        served.tick()
        stats = served.scheduler.stats()
        assert stats.kv_rows * stats.kv_positions <= 1024
    assert stats.counters.preemptions > 0
    for one, params in zip(told, requests, strict=True):
        assert (
            one.text == alone(tiny_engine(tokenizer=tokenizer, context=600), params, chunk=128)[0]
        )


def test_the_neighbour_of_a_preempted_row_keeps_its_pipeline(tokenizer):
    engine = cycle_engine(tokenizer=tokenizer)
    served = preempting(engine, parallel=2)
    stays = served.submit("stays", SequenceParams((1, 2, 3), max_tokens=40))
    goes = served.submit("goes", SequenceParams((1, 2, 3), max_tokens=40), priority=Priority.LOW)
    for _ in range(6):
        served.tick()
    served.submit("high", SequenceParams((1,), max_tokens=3), priority=Priority.HIGH)
    served.run()
    counters = served.scheduler.stats().counters
    assert counters.preemptions == 1
    assert counters.decode_steps - counters.lookahead_steps == 1
    assert stays.tokens == goes.tokens == [(4 + i) % 16 for i in range(40)]
    deltas = [t for t, e in zip(stays.ticks, stays.events, strict=True) if isinstance(e, Delta)]
    assert deltas == list(range(2, 42))


def test_a_preempted_request_keeps_its_place_and_its_start(tokenizer):
    """It comes back before those of its lane that never ran, however full the queue."""
    settings = SchedulerSettings(
        Limits(parallel=1, preemption=PreemptionPolicy.LONGEST_FIRST), queue_depth=1
    )
    served = Served(cycle_engine(tokenizer=tokenizer), settings=settings)
    first = served.submit("first", SequenceParams((1,), max_tokens=30))
    for _ in range(3):
        served.tick()
    served.submit("high", SequenceParams((1,), max_tokens=3), priority=Priority.HIGH)
    served.tick()
    assert served.scheduler.stats().counters.preemptions == 1
    served.tick()
    assert served.scheduler.stats().queue_depths[Priority.NORMAL] == 1
    served.run()
    assert [type(event) for event in first.events].count(Started) == 1
    assert first.done.timings.ttft_s < first.done.timings.predicted_s


def test_a_preempted_request_can_be_cancelled_while_it_waits(tokenizer):
    served = preempting(cycle_engine(tokenizer=tokenizer))
    low = served.submit("low", SequenceParams((1,), max_tokens=30), priority=Priority.LOW)
    for _ in range(3):
        served.tick()
    high = served.submit("high", SequenceParams((1,), max_tokens=9), priority=Priority.HIGH)
    served.tick()
    served.tick()
    served.scheduler.cancel("low")
    served.run()
    assert isinstance(low.last, Cancelled)
    assert isinstance(high.last, Done)


def test_a_drain_lets_who_was_preempted_finish(tokenizer):
    served = preempting(cycle_engine(tokenizer=tokenizer))
    low = served.submit("low", SequenceParams((1,), max_tokens=30), priority=Priority.LOW)
    for _ in range(3):
        served.tick()
    served.submit("high", SequenceParams((1,), max_tokens=9), priority=Priority.HIGH)
    served.tick()
    served.tick()
    served.scheduler.drain()
    served.run()
    assert low.tokens == [(2 + i) % 16 for i in range(30)]


class Hooks:
    """A row that cannot be replayed."""

    def mask(self, ids):
        return None

    def finish(self, ids):
        return None


def test_a_row_with_hooks_is_not_preempted(tokenizer):
    served = preempting(cycle_engine(tokenizer=tokenizer))
    told = interrupted(served, SequenceParams((1,), max_tokens=20), at=[3], hooks=Hooks())
    assert served.scheduler.stats().counters.preemptions == 0
    assert told.tokens == [(2 + i) % 16 for i in range(20)]
