"""Answers, events and the pipeline, where the text is known and against solo runs."""

from engine.events import Delta, Done, Started
from engine.finish import FinishCause
from engine.params import SamplingParams, SequenceParams
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import cycle_engine, tiny_engine
from tests.engine.scheduler.scheduler_rigs import (
    PROMPT,
    Clock,
    Served,
    alone,
    each_width,
    mixed_requests,
    params,
    progress,
    seeds,
)

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


def test_progress_is_told_for_each_chunk(cycle):
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
