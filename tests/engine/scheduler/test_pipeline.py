import logging

import pytest

from engine.errors import EvalFailed, InternalFault
from engine.outcome import SeqId, StepOutcome
from engine.scheduler.pipeline import Pipeline
from engine.scheduler.stats import Counters

A, B, C = SeqId(0), SeqId(1), SeqId(2)


class FakeEngine:
    """Tickets are numbers; the log is the order of calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.rows: list[tuple[SeqId, ...]] = []

    def submit(self, seqs):
        self.rows.append(tuple(seqs))
        call = f"submit {len(self.rows)}"
        self.log.append(call)
        if call in self.fails:
            raise self.fails[call]
        return len(self.rows)

    def collect(self, ticket):
        call = f"collect {ticket}"
        self.log.append(call)
        if call in self.fails:
            raise self.fails[call]
        return [StepOutcome(seq, ticket) for seq in self.rows[ticket - 1]]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def pipeline(engine: FakeEngine, counters: Counters) -> Pipeline:
    return Pipeline(engine, counters, lambda: 0.0)


def test_the_next_step_is_submitted_before_the_one_before_is_read(engine, pipeline):
    for _ in range(3):
        pipeline.advance([A])
    assert engine.log == ["submit 1", "submit 2", "collect 1", "submit 3", "collect 2"]


def test_without_the_pipeline_each_step_is_read_at_once(engine, counters):
    pipeline = Pipeline(engine, counters, lambda: 0.0, is_pipelined=False)
    for _ in range(2):
        assert len(pipeline.advance([A])) == 1
    assert engine.log == ["submit 1", "collect 1", "submit 2", "collect 2"]
    assert (counters.decode_steps, counters.lookahead_steps) == (2, 0)


def test_rows_join_and_leave_between_steps(engine, pipeline, counters):
    pipeline.advance([A, B])
    pipeline.advance([B, C])
    assert pipeline.in_flight == (B, C)
    assert [outcome.seq for outcome in pipeline.advance([])] == [B, C]
    assert pipeline.in_flight == ()
    assert (counters.decode_steps, counters.lookahead_steps) == (2, 1)


def test_nobody_is_no_step(engine, pipeline):
    assert pipeline.advance([]) == []
    assert engine.log == []


def test_a_step_that_is_nobody_s_any_more_is_dropped_unread(engine, pipeline):
    pipeline.advance([A, B])
    pipeline.forget(A)
    assert pipeline.in_flight == (B,)
    pipeline.forget(B)
    assert pipeline.advance([]) == []
    assert engine.log == ["submit 1"]


def test_a_step_that_cannot_be_submitted_ends_its_rows_after_what_was_read(
    engine, pipeline, caplog
):
    engine.fails["submit 2"] = AssertionError("a bug")
    pipeline.advance([A, B])
    outcomes = pipeline.advance([B])
    assert [(o.seq, o.token) for o in outcomes] == [(A, 1), (B, 1), (B, None)]
    assert isinstance(outcomes[-1].error, InternalFault)
    assert "a bug" in str(outcomes[-1].error)
    assert caplog.records[0].levelno == logging.ERROR
    assert pipeline.in_flight == ()


def test_a_step_that_cannot_be_read_ends_its_rows_and_not_the_next_step_s(engine, pipeline, caplog):
    engine.fails["collect 1"] = IndexError("a bug")
    pipeline.advance([A, B])
    outcomes = pipeline.advance([A, C])
    assert [(o.seq, type(o.error)) for o in outcomes] == [(A, InternalFault), (B, InternalFault)]
    assert pipeline.in_flight == (A, C)
    assert caplog.records


def test_a_row_error_that_is_raised_stays_what_it_is(engine, pipeline, caplog):
    engine.fails["collect 1"] = EvalFailed("gone")
    pipeline.advance([A])
    (outcome,) = pipeline.advance([])
    assert isinstance(outcome.error, EvalFailed)
    assert caplog.records


def test_slack_is_reported_while_a_step_is_in_flight(engine, counters):
    """Steps of 10 s, of which the host's part is one."""
    now = 0.0

    def clock() -> float:
        return now

    class Slow(FakeEngine):
        def submit(self, seqs):
            nonlocal now
            now += 1
            return super().submit(seqs)

        def collect(self, ticket):
            nonlocal now
            now += 9
            return super().collect(ticket)

    pipeline = Pipeline(Slow(), counters, clock)
    assert pipeline.slack_s() == 0.0
    for _ in range(12):
        pipeline.advance([A])
    assert pipeline.slack_s() == pytest.approx(10 - 2, abs=0.01)
    now += 5
    assert pipeline.slack_s() == pytest.approx(3, abs=0.01)
    pipeline.advance([A, B])
    assert pipeline.slack_s() == 0.0  # steps of other rows take another time
    pipeline.forget(A)
    pipeline.forget(B)
    assert pipeline.slack_s() == 0.0
