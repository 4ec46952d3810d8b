"""Drafts in the batch: rows that come, fail, are cancelled and end inside a round (I6 to I8)."""

import mlx.core as mx
import pytest

from engine.errors import EvalFailed, InternalFault, RowError
from engine.events import Cancelled, Delta
from engine.finish import FinishCause
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority
from tests.engine.rigs import Watched
from tests.engine.scheduler.prompt_lookup_rigs import (
    COPY,
    PLAIN,
    Watch,
    alphabet,
    drafter,
    endless,
    params,
    served,
    ticks_until,
)
from tests.engine.scheduler.scheduler_rigs import Served


@pytest.fixture
def engine(tokenizer):
    return alphabet(tokenizer)


# -- I6: coming and going


@pytest.mark.parametrize("draws", [True, False])
def test_an_entering_row_empties_nobody_s_pipeline_and_is_asked_in_a_later_tick(tokenizer, draws):
    """Whether its first token comes before the step that it joins, or from it."""
    engine = endless(tokenizer)
    engine.holds_steps = draws
    watch, one = Watch(engine), served(engine)
    one.submit("a", params(PLAIN, 100))
    ticks_until(one, lambda: len(one.told["a"].tokens) == 5)
    told = one.submit("b", params((200,), 30))
    ticks = 0
    while not told.tokens:
        assert watch.of_tick(one) == ["submit", "collect"]
        ticks += 1
    assert ticks == (1 if draws else 2)
    begun = drafter(one, "b")
    assert begun is not None
    assert begun.stats.rounds == 0, "it starts with the first token"
    one.tick()
    assert begun.stats.rounds == 1
    one.run()


def test_a_preempted_row_gets_a_fresh_drafter_and_writes_the_same(engine):
    one = served(engine, parallel=1, preemption=PreemptionPolicy.LONGEST_FIRST)
    told = one.submit("a", params(COPY, 90), priority=Priority.LOW)
    ticks_until(one, lambda: len(told.tokens) > 20)
    first = drafter(one, "a")
    one.submit("b", params(COPY, 10), priority=Priority.HIGH)
    ticks_until(one, lambda: "a" not in one.scheduler._rows)
    assert drafter(one, "a") is None
    ticks_until(one, lambda: "a" in one.scheduler._rows and drafter(one, "a") is not None)
    assert drafter(one, "a") is not first
    rounds = one.scheduler._rows["a"].drafts.verified.drafted_rounds
    assert rounds > 0, "what it did before still counts"
    one.run()
    assert told.tokens == [(3 + i) % 24 for i in range(90)]
    assert told.done.timings.draft_rounds > rounds
    assert one.scheduler.stats().counters.preemptions == 1


def test_nothing_is_left_of_rows_that_ended(engine):
    one = served(engine)
    for i in range(3):
        one.submit(str(i), params(COPY, 30))
    ticks_until(one, lambda: len(one.told["0"].tokens) > 9)
    one.scheduler.cancel("1")
    one.run()
    assert not one.scheduler._rows


# -- I7: faults


def test_a_round_that_fails_ends_its_row_and_no_other(engine):
    one = served(engine)
    told, beside = one.submit("a", params(COPY, 60)), one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    seq = one.scheduler._rows["a"].seq
    forward = engine.drafting.forward_drafts

    def fails(drafts):
        if seq in drafts:
            raise EvalFailed("the device fell over")
        return forward(drafts)

    engine.drafting.forward_drafts = fails
    one.run()
    assert isinstance(told.error, EvalFailed)
    assert told.tokens == [(3 + i) % 24 for i in range(len(told.tokens))]
    assert beside.tokens == [(3 + i) % 24 for i in range(60)]


def test_a_bug_in_a_round_ends_its_row_and_no_other(engine, caplog):
    one = served(engine)
    told, beside = one.submit("a", params(COPY, 60)), one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    seq, verify = one.scheduler._rows["a"].seq, engine.verify_together

    def fails(drafts):
        if seq in drafts:
            raise AssertionError("a bug")
        return verify(drafts)

    engine.verify_together = fails
    one.run()
    assert isinstance(told.error, InternalFault)
    assert "request a" in caplog.text
    assert beside.tokens == [(3 + i) % 24 for i in range(60)]


# -- I8, and ends inside a round


def test_a_row_that_is_cancelled_between_its_rounds_is_told_so_at_once(engine):
    one = served(engine)
    told, beside = one.submit("a", params(COPY, 200)), one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: len(told.tokens) > 20)
    one.scheduler.cancel("a")
    one.tick()
    assert isinstance(told.last, Cancelled)
    assert told.tokens == [(3 + i) % 24 for i in range(len(told.tokens))]
    one.run()
    assert beside.tokens == [(3 + i) % 24 for i in range(60)]


@pytest.mark.parametrize("end", [14, 15, 18, 21])
def test_an_end_token_inside_an_accepted_block_ends_there(tokenizer, end):
    engine = alphabet(tokenizer, eos={end})
    prompt = (*range(24), 0, 1, 2)
    one = served(engine)
    told, beside = one.submit("a", params(prompt, 60)), one.submit("b", params((30,), 8))
    one.run()
    assert told.done.finish is FinishCause.EOS
    assert told.tokens == list(range(3, end))
    assert told.done.timings.draft_rounds > 0
    assert beside.tokens == list(range(8))


@pytest.mark.parametrize("end", [14, 15, 18, 21])
def test_a_request_s_own_stop_token_inside_an_accepted_block_ends_there(engine, end):
    asked = params(COPY, 60, stop_ids=frozenset({end}))
    one, plain = served(engine), Served(engine)
    told, beside = one.submit("a", asked), one.submit("b", params(COPY, 60))
    one.run()
    other = plain.submit("a", asked)
    plain.run()
    assert told.tokens == other.tokens == list(range(3, end))
    assert told.done.finish is other.done.finish is FinishCause.EOS
    assert told.done.usage == other.done.usage
    assert told.done.timings.draft_rounds > 0
    assert beside.tokens == [(3 + i) % 24 for i in range(60)]


@pytest.mark.parametrize("place", range(1, 8))
def test_a_fault_inside_an_accepted_block_ends_its_row_there(engine, place):
    """What stood before it is told, nothing behind it; the neighbours hear nothing of it."""
    watched = Watched(engine)
    wide = []

    def spoils(call, logits):
        if wide == [call - 1]:  # the plain step in place of the rest of the block
            return mx.full(logits.shape, float("nan"))
        if logits.shape[1] < 8:
            return logits
        wide.append(call)
        places = mx.arange(logits.shape[1])[None, :, None]
        return mx.where(places == place, float("nan"), logits)

    one = served(engine)
    told = one.submit("a", params(COPY, 60))
    beside = one.submit("b", params((100,), 10))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    watched.spoils = spoils
    before = len(told.tokens)
    one.run()
    assert isinstance(told.error, RowError)
    assert told.tokens == [(3 + i) % 24 for i in range(before + 1 + place)]
    assert beside.tokens == list(range(10))


@pytest.mark.parametrize("stop", ["\x0e", "\x0f\x10", "\x12\x13\x14"])
def test_a_stop_string_inside_an_accepted_block_ends_there(engine, stop):
    one = served(engine)
    told = one.submit("a", params(COPY, 60), stops=(stop,))
    one.run()
    plain = Served(engine)
    other = plain.submit("a", params(COPY, 60), stops=(stop,))
    plain.run()
    assert told.text == other.text
    assert told.done.finish is other.done.finish is FinishCause.STOP_SEQUENCE
    assert told.done.stop_match == stop
    assert told.done.usage == other.done.usage
    assert told.done.timings.draft_rounds > 0


def test_a_round_is_one_delta(engine):
    one = served(engine)
    told = one.submit("a", params(COPY, 60))
    one.run()
    sizes = [len(event.tokens) for event in told.events if isinstance(event, Delta)]
    assert max(sizes) == 8
    assert sum(sizes) == 60


def test_counts_are_told_with_the_end(engine):
    watch, one = Watch(engine), served(engine)
    told = one.submit("a", params(COPY, 60))
    plain = one.submit("b", params((200,), 10))
    one.run()
    (drafts,) = watch.drafts.values()
    times = told.done.timings
    assert times.draft_rounds == len(drafts) > 3
    assert times.draft_n == sum(map(len, drafts))
    assert times.draft_n_accepted == sum(watch.accepted) > 30
    assert times.draft_kind == "prompt-lookup"
    assert plain.done.timings.draft_kind is None
    counters = one.scheduler.stats().counters
    assert counters.verify_rounds == times.draft_rounds
    assert counters.draft_tokens == times.draft_n
    assert counters.draft_tokens_accepted == times.draft_n_accepted
    assert counters.decode_tokens == 70 - 1, "b's first token is drawn ahead of a step"
