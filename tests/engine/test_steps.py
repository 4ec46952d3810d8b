"""Steps that fail: who is told, when, and that nobody else is touched."""

import gc

import mlx.core as mx
import pytest

from engine import guard
from engine.errors import EvalFailed, InvalidParams
from engine.kv.dense import DenseLayer
from engine.kv.pool import ROW_BUCKETS, Pool
from tests.engine.inside import build_steps_first, row_of
from tests.engine.rigs import begun, cycle_engine, tiny_engine


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


def test_a_row_s_third_step_before_its_first_is_collected_is_refused_and_changes_nothing():
    engine = cycle_engine()
    first, second = begun(engine, (3, 4), (5, 6))
    tickets = [engine.submit([first]), engine.submit([first])]
    with pytest.raises(InvalidParams, match="must be collected first"):
        engine.submit([second, first])
    tickets.append(engine.submit([second]))
    assert [engine.collect(ticket)[0].token for ticket in tickets] == [6, 7, 8]


def test_no_step_goes_behind_one_whose_draw_waits_for_the_host():
    engine = cycle_engine()
    watched, beside = begun(engine, (3, 4), (5, 6))
    row_of(engine, watched).hooks = NoHooks()
    one, two = engine.submit([watched]), engine.submit([watched, beside])
    with pytest.raises(InvalidParams, match="must be collected first"):
        engine.submit([beside])
    assert [outcome.token for outcome in engine.collect(one)] == [6]
    three = engine.submit([beside])
    tokens = [[outcome.token for outcome in engine.collect(ticket)] for ticket in (two, three)]
    assert tokens == [[7, 8], [9]]


class NoHooks:
    """Hooks that decide nothing: the row's draws wait for its newest token."""

    def mask(self, ids):
        return None

    def finish(self, ids):
        return None


# -- steps that are held (on a CPU)


def _noting_dispatches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    real, calls = guard.dispatch, []

    def noting(arrays):
        calls.append(len(arrays))
        real(arrays)

    monkeypatch.setattr(guard, "dispatch", noting)
    return calls


@pytest.mark.parametrize("holds", [False, True])
def test_a_step_behind_one_that_is_not_read_starts_at_once_or_with_the_flush(monkeypatch, holds):
    engine = cycle_engine()
    build_steps_first(engine, holds)
    (seq,) = begun(engine, (3, 4))
    calls = _noting_dispatches(monkeypatch)
    first = engine.submit([seq])
    assert len(calls) == 1
    second = engine.submit([seq])
    assert len(calls) == 2 - holds
    (told,) = engine.collect(first)
    assert len(calls) == 2 - holds
    engine.flush()
    engine.flush()
    assert len(calls) == 2
    (after,) = engine.collect(second)
    assert (told.token, after.token) == (6, 7)


def test_a_held_step_that_nobody_flushed_is_read_all_the_same():
    engine = cycle_engine()
    build_steps_first(engine, True)
    (seq,) = begun(engine, (3, 4))
    first, second = engine.submit([seq]), engine.submit([seq])
    assert [engine.collect(one)[0].token for one in (first, second)] == [6, 7]


def test_the_next_submit_starts_a_held_step_before_it_builds_its_own(monkeypatch):
    engine = cycle_engine()
    build_steps_first(engine, True)
    (seq,) = begun(engine, (3, 4))
    calls = _noting_dispatches(monkeypatch)
    ticket = engine.submit([seq])
    for step in range(1, 6):
        following = engine.submit([seq])
        engine.collect(ticket)
        assert len(calls) == step
        ticket = following


def test_a_held_step_whose_rows_are_gone_never_starts(monkeypatch):
    engine = cycle_engine()
    build_steps_first(engine, True)
    (seq,) = begun(engine, (3, 4))
    calls = _noting_dispatches(monkeypatch)
    first, _ = engine.submit([seq]), engine.submit([seq])
    engine.collect(first)
    engine.close(seq)
    engine.flush()
    assert len(calls) == 1


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("ends", ["closed", "retired"])
def test_a_step_in_flight_behind_the_end_of_a_row_keeps_no_kv(holds, ends):
    engine = tiny_engine()
    build_steps_first(engine, holds)
    (seq,) = begun(engine, tuple(range(250)) * 2)  # the first plans and tables are made
    engine.close(seq)
    gc.collect()
    before = mx.get_active_memory()
    (seq,) = begun(engine, tuple(range(250)) * 2)
    kv = sum(array.nbytes for array in engine.choice.storage.arrays())
    first, second = engine.submit([seq]), engine.submit([seq])
    engine.collect(first)
    if ends == "retired":
        engine.retire(seq)
    engine.close(seq)
    del first, second
    gc.collect()
    assert mx.get_active_memory() - before < kv / 10


def test_a_held_step_that_cannot_be_started_ends_its_rows_when_it_is_collected(monkeypatch):
    engine = cycle_engine()
    build_steps_first(engine, True)
    (seq,) = begun(engine, (3, 4))
    first, second = engine.submit([seq]), engine.submit([seq])
    assert engine.collect(first)[0].error is None
    _fail_once(monkeypatch, "dispatch")
    engine.flush()
    assert not engine.wants_step(seq)
    assert isinstance(engine.collect(second)[0].error, EvalFailed)


def test_more_rows_than_the_widest_bucket_are_refused_by_name():
    layer = DenseLayer()
    pool = Pool([layer], [layer])
    for _ in range(ROW_BUCKETS[-1]):
        pool.open(1)
    with pytest.raises(InvalidParams, match=f"at most {ROW_BUCKETS[-1]} open rows"):
        pool.open(1)
