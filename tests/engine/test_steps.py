"""Steps that fail: who is told, when, and that nobody else is touched."""

import pytest

from engine import guard
from engine.errors import EvalFailed, InvalidParams
from engine.kv.dense import DenseLayer
from engine.kv.pool import ROW_BUCKETS, Pool
from tests.engine.rigs import begun, cycle_engine


def _fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real, calls = getattr(guard, name), []

    def failing(*args):
        if not calls:
            calls.append(1)
            raise EvalFailed("injected")
        return real(*args)

    monkeypatch.setattr(guard, name, failing)


def test_a_row_behind_a_failed_step_wants_no_further_one(monkeypatch):
    engine = cycle_engine()
    sick, sound = begun(engine, (3, 4), (5, 6))
    _fail_once(monkeypatch, "dispatch")
    ticket = engine.submit([sick])
    assert not engine.wants_step(sick)
    assert engine.wants_step(sound)
    (outcome,) = engine.collect(ticket)
    assert isinstance(outcome.error, EvalFailed)


def test_a_step_that_cannot_be_dispatched_is_told_when_it_is_collected(monkeypatch):
    engine = cycle_engine()
    sick, sound = begun(engine, (3, 4), (5, 6))
    _fail_once(monkeypatch, "dispatch")
    ticket = engine.submit([sick])
    assert [outcome.error is None for outcome in engine.step([sound])] == [True]
    assert [str(outcome.error) for outcome in engine.collect(ticket)] == [
        "inference backend error: injected"
    ]


def test_a_ticket_whose_rows_are_gone_is_not_read(monkeypatch):
    engine = cycle_engine()
    (seq,) = begun(engine, (3, 4))
    ticket = engine.submit([seq])
    engine.close(seq)
    monkeypatch.setattr(guard, "read", lambda _: pytest.fail("read for nobody"))
    assert engine.collect(ticket) == []


def test_more_rows_than_the_widest_bucket_are_refused_by_name():
    layer = DenseLayer()
    pool = Pool([layer], [layer])
    for _ in range(ROW_BUCKETS[-1]):
        pool.open(1)
    with pytest.raises(InvalidParams, match=f"at most {ROW_BUCKETS[-1]} open rows"):
        pool.open(1)
