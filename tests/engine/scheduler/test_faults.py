"""What is raised ends what it touched, and nothing else."""

import pytest

from engine import guard
from engine.errors import (
    EngineError,
    EngineUnhealthy,
    EvalFailed,
    HookFailed,
    InternalFault,
    NonFiniteLogits,
)
from engine.events import Done, Failed
from engine.guard import FAILURES_ALLOWED
from engine.params import SamplingParams, SequenceParams
from engine.scheduler import scheduler as scheduler_module
from engine.scheduler.stats import SchedulerPhase
from tests.engine.inside import row_of
from tests.engine.rigs import Watched, cycle_engine, tiny_engine
from tests.engine.scheduler.scheduler_rigs import Served, alone, each_width, mixed_requests


def answers(served: Served) -> list[str]:
    return [type(one.last).__name__ for one in served.told.values()]


class FaultyMask:
    """Raises once so many tokens are there."""

    def __init__(self, at: int) -> None:
        self._at = at

    def mask(self, ids):
        if len(ids) >= self._at:
            raise ValueError("a faulty grammar")

    def finish(self, ids):
        return None


@pytest.mark.parametrize("at", [4, 5, 9])
def test_a_row_that_fails_in_mid_stream_leaves_two_neighbours_byte_identical(tokenizer, at: int):
    requests = mixed_requests(2)
    solo = [alone(tiny_engine(tokenizer=tokenizer), one)[0] for one in requests]
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=3)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests)]
    faulty = SequenceParams((1, 2, 3), max_tokens=30)
    failed = served.submit("faulty", faulty, hooks=FaultyMask(at))
    served.run()
    assert [one.text for one in told] == solo
    assert isinstance(failed.error, HookFailed)
    assert len(failed.tokens) == max(0, at - 3)


@pytest.mark.parametrize("calls", range(1, 24))
def test_a_backend_fault_anywhere_ends_some_and_serving_goes_on(tokenizer, calls: int):
    engine = tiny_engine(tokenizer=tokenizer)
    requests = mixed_requests(6)
    watched = Watched(engine)
    watched.fails_in = lambda call: call == calls
    served = Served(engine, parallel=3)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests)]
    served.run()
    assert 1 <= answers(served).count("Failed") <= 3
    for one, params in zip(told, requests, strict=True):
        text = alone(tiny_engine(tokenizer=tokenizer), params)[0]
        if isinstance(one.last, Done):
            assert one.text == text
        else:
            assert isinstance(one.error, EvalFailed)
            assert text.startswith(one.text)
    again = served.submit("again", requests[0])
    served.run()
    assert again.text == told[0].text or isinstance(told[0].last, Failed)


def test_a_prompt_that_fails_leaves_the_rows_that_decode(tokenizer):
    engine = cycle_engine(tokenizer=tokenizer)
    watched = Watched(engine)
    served = Served(engine, parallel=3)
    told = served.submit("a", SequenceParams((1, 2, 3), max_tokens=30))
    for _ in range(4):
        served.tick()
    at = watched.calls + 1
    watched.fails_in = lambda call: call == at
    failed = served.submit("b", SequenceParams((1, 2, 3), max_tokens=30))
    served.run()
    assert isinstance(failed.error, EvalFailed)
    assert told.tokens == [(4 + i) % 16 for i in range(30)]


def test_logits_that_are_not_finite_end_their_row_only(tokenizer):
    engine = tiny_engine(tokenizer=tokenizer)
    watched = Watched(engine)
    requests = mixed_requests(2)
    solo = [alone(tiny_engine(tokenizer=tokenizer), one)[0] for one in requests]
    served = Served(engine, parallel=2)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests)]
    served.tick()
    bad = served.scheduler.stats().slots[0].slot
    at = watched.calls + 2

    def spoil(call, logits):
        if call == at:
            logits[bad] = float("nan")
        return logits

    watched.spoils = spoil
    served.run()
    assert isinstance(told[0].error, NonFiniteLogits)
    assert told[1].text == solo[1]


def lose_the_kv_of_all(watched, monkeypatch):
    """The next forward fails, and no array of the storage can be computed then."""
    at = watched.calls + 1
    watched.fails_in = lambda call: call == at

    def lost(arrays):
        monkeypatch.undo()
        raise EvalFailed("lost the device")

    monkeypatch.setattr(guard, "evaluate", lost)


def test_when_every_array_is_lost_all_rows_end_and_new_ones_are_served(tokenizer, monkeypatch):
    engine = cycle_engine(tokenizer=tokenizer)
    watched = Watched(engine)
    served = Served(engine, parallel=4)
    told = [served.submit(str(i), SequenceParams((1, i), max_tokens=30)) for i in range(3)]
    for _ in range(5):
        served.tick()
    lose_the_kv_of_all(watched, monkeypatch)
    served.run()
    assert [type(one.error) for one in told] == [EvalFailed] * 3
    again = served.submit("again", SequenceParams((1, 2, 3), max_tokens=3))
    served.run()
    assert again.tokens == [4, 5, 6]


def test_a_row_that_is_in_no_step_when_its_kv_is_lost_is_told_too(tokenizer, monkeypatch):
    engine = cycle_engine(tokenizer=tokenizer)
    watched = Watched(engine)
    served = Served(engine, parallel=4)
    told = [served.submit(str(i), SequenceParams((1, i), max_tokens=30)) for i in range(3)]
    for _ in range(5):
        served.tick()
    served.scheduler.pause("0")
    for _ in range(3):
        served.tick()
    lose_the_kv_of_all(watched, monkeypatch)
    for _ in range(5):
        served.tick()
    assert [type(one.error) for one in told] == [EvalFailed] * 3
    assert not served.scheduler.stats().slots


def test_faults_of_a_whole_step_count_once_and_eight_are_the_end(tokenizer):
    engine = cycle_engine(tokenizer=tokenizer)
    watched = Watched(engine)
    watched.fails_in = lambda call: True
    served = Served(engine, parallel=2)
    for i in range(FAILURES_ALLOWED - 1):
        served.submit(f"a{i}", SequenceParams((1,), max_tokens=9))
        served.run()
    assert served.scheduler.phase is SchedulerPhase.SERVING
    waiting = [served.submit(f"b{i}", SequenceParams((1,), max_tokens=9)) for i in range(5)]
    served.run()
    assert served.scheduler.phase is SchedulerPhase.UNHEALTHY
    assert served.scheduler.is_drained
    assert all(isinstance(one.last, Failed) for one in waiting)
    assert any(isinstance(one.error, EngineUnhealthy) for one in waiting)
    with pytest.raises(EngineUnhealthy):
        served.submit("c", SequenceParams((1,), max_tokens=9))


def test_a_success_starts_the_count_again(tokenizer):
    engine = cycle_engine(tokenizer=tokenizer)
    watched = Watched(engine)
    served = Served(engine, parallel=2)
    for i in range(3 * FAILURES_ALLOWED):
        watched.fails_in = lambda call, fails=bool(i % FAILURES_ALLOWED): fails
        served.submit(str(i), SequenceParams((1,), max_tokens=3))
        served.run()
    assert served.scheduler.phase is SchedulerPhase.SERVING


@each_width
def test_a_request_whose_row_cannot_be_opened_fails_alone(tokenizer, monkeypatch, parallel: int):
    engine = cycle_engine(tokenizer=tokenizer)
    served = Served(engine, parallel=parallel)
    opened, calls = engine.open, []

    def faulty(params, **kw):
        calls.append(params)
        if len(calls) == 2:
            raise AssertionError("a bug of ours")
        return opened(params, **kw)

    monkeypatch.setattr(engine, "open", faulty)
    told = [served.submit(str(i), SequenceParams((1,), max_tokens=5)) for i in range(4)]
    served.run()
    assert answers(served) == ["Done", "Failed", "Done", "Done"]
    assert isinstance(told[1].error, InternalFault)


@pytest.mark.parametrize("name", ["plan_tick", "steps_since_chunk"])
def test_planning_that_raises_ends_that_tick_s_rows_and_the_next_tick_goes_on(
    tokenizer, monkeypatch, name: str
):
    served = Served(cycle_engine(tokenizer=tokenizer), parallel=2)
    told = [served.submit(str(i), SequenceParams((1,), max_tokens=9)) for i in range(5)]
    for _ in range(3):
        served.tick()
    with monkeypatch.context() as patch:

        def faulty(*args, **kw):
            raise ZeroDivisionError("a bug of ours")

        patch.setattr(scheduler_module, name, faulty)
        served.tick()
    served.run()
    assert answers(served) == ["Failed", "Failed", "Failed", "Done", "Done"]
    assert all(isinstance(one.error, InternalFault) for one in told[:3])


@pytest.mark.parametrize("call", ["submit", "collect", "prefill", "join", "wants_step", "close"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_whatever_an_engine_call_raises_every_request_has_one_end(
    tokenizer, monkeypatch, call: str, at: int
):
    engine = tiny_engine(tokenizer=tokenizer)
    served = Served(engine, parallel=3)
    real, calls = getattr(engine, call), []

    def faulty(*args, **kw):
        calls.append(args)
        if len(calls) == at:
            raise KeyError("a bug of ours")
        return real(*args, **kw)

    monkeypatch.setattr(engine, call, faulty)
    monkeypatch.setattr(served, "_check", lambda: None)
    requests = mixed_requests(6)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests)]
    served.run()
    assert all(one.is_over for one in told)
    for one, params in zip(told, requests, strict=True):
        text = alone(tiny_engine(tokenizer=tokenizer), params)[0]
        assert text.startswith(one.text)
        if isinstance(one.last, Done):
            assert one.text == text
        else:
            assert isinstance(one.error, EngineError)


def test_a_text_side_that_raises_ends_its_row(tokenizer):
    engine = tiny_engine(tokenizer=tokenizer)
    served = Served(engine, parallel=2)
    good = served.submit("good", SequenceParams((1, 2), max_tokens=9))
    bad = served.submit("bad", SequenceParams((1, 2), max_tokens=9))
    served.tick()

    class Faulty:
        def push(self, token):
            raise UnicodeError("a faulty decoder")

    seq = served.scheduler._rows["bad"].seq
    row_of(engine, seq).text = Faulty()
    served.run()
    assert isinstance(bad.error, HookFailed)
    assert isinstance(good.last, Done)


def test_a_sampler_that_needs_the_host_may_end_while_a_newcomer_s_step_waits(tokenizer):
    dry = SamplingParams(dry_multiplier=0.1, dry_allowed_length=50, dry_sequence_breakers=())
    for wait in range(8):
        served = Served(cycle_engine(tokenizer=tokenizer, eos={8}), parallel=4)
        first = served.submit("a", SequenceParams((1, 2, 3), sampling=dry, max_tokens=100))
        for _ in range(wait):
            served.tick()
        second = served.submit("b", SequenceParams((9,), max_tokens=6))
        served.run()
        assert first.tokens == [4, 5, 6, 7]
        assert second.tokens == [10, 11, 12, 13, 14, 15]
