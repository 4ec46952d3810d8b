import gc

import mlx.core as mx
import pytest

from engine import guard
from engine.errors import EvalFailed, HookFailed, InvalidParams, RewindFailed, UnknownSequence
from engine.finish import FinishCause, fail
from engine.kv.dense import DenseLayer
from engine.kv.pool import ROW_BUCKETS, Pool
from engine.outcome import StepOutcome
from engine.params import SequenceParams
from tests.engine.inside import build_steps_first, row_of, steps_of, storage_of, table_of
from tests.engine.rigs import begun, cycle_engine, prefill, run_alone, tiny_engine


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


def test_a_step_that_cannot_be_dispatched_is_reported_when_it_is_collected(monkeypatch):
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
        engine.transfer.finish_row(seq)
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


@pytest.fixture
def rows():
    """An engine with two rows that decode, and its ledger's records of them."""
    engine = cycle_engine()
    seqs = [engine.open(SequenceParams((token,))) for token in (3, 9)]
    for seq in seqs:
        prefill(engine, seq)
    return engine, [row_of(engine, seq) for seq in seqs]


def test_a_row_that_is_not_open_is_said_to_be_so(rows):
    with pytest.raises(UnknownSequence, match="77"):
        table_of(rows[0]).row(77)


def test_finishing_nothing_of_a_row_that_continues_cuts_nothing(rows):
    engine, (row, _) = rows
    engine.submit([row.seq])
    outcome = StepOutcome(row.seq, 5)
    assert steps_of(engine).finish(row, outcome) is outcome
    assert len(row.in_flight) == 1
    assert storage_of(engine).length(row.slot) == 2


def test_a_finished_row_cuts_its_appends_in_flight(rows):
    engine, (row, other) = rows
    seqs = [row.seq, other.seq]
    engine.submit(seqs)
    engine.submit(seqs)
    steps_of(engine).finish(row, StepOutcome(row.seq, 5, finish=FinishCause.LENGTH))
    assert row.in_flight == []
    assert storage_of(engine).length(row.slot) == 1
    assert storage_of(engine).length(other.slot) == 3


def test_a_cut_that_fails_beats_the_finish(rows, monkeypatch):
    engine, (row, _) = rows

    def refuses(slot: int, tokens: int) -> None:
        raise RewindFailed("no way back")

    monkeypatch.setattr(storage_of(engine), "rewind", refuses)
    outcome = steps_of(engine).finish(row, StepOutcome(row.seq, 5, finish=FinishCause.LENGTH))
    assert isinstance(outcome.error, RewindFailed)
    assert outcome.finish is None
    assert row.failed


def test_a_cut_that_fails_does_not_hide_why_the_row_failed(rows, monkeypatch):
    engine, (row, _) = rows

    def refuses(slot: int, tokens: int) -> None:
        raise RewindFailed("no way back")

    monkeypatch.setattr(storage_of(engine), "rewind", refuses)
    outcome = steps_of(engine).finish(row, fail(row, HookFailed("the grammar broke")))
    assert isinstance(outcome.error, HookFailed)


def test_the_cache_is_cleared_once_in_so_many_tokens(monkeypatch):
    clears = []
    monkeypatch.setattr(mx, "clear_cache", lambda: clears.append(1))
    for clear_every, expected in ((4, 3), (0, 0)):
        engine = tiny_engine()
        steps_of(engine)._clear_every = clear_every
        clears.clear()
        run_alone(engine, SequenceParams((5,), max_tokens=15))
        assert len(clears) == expected


def test_a_failure_counts_once_however_many_rows_it_ends(rows):
    engine, both = rows
    outcomes = steps_of(engine).end(both, EvalFailed("gone"))
    assert [outcome.seq for outcome in outcomes] == [row.seq for row in both]
    assert engine.health.failures == 1
    assert all(row.failed for row in both)
    assert all(row.lost is None for row in both)


def test_a_fault_of_a_hook_says_nothing_about_the_backend(rows):
    engine, (row, _) = rows
    steps_of(engine).end([row], HookFailed("the grammar broke"))
    assert engine.health.failures == 0


def test_rows_are_lost_when_the_shared_arrays_are(rows, monkeypatch):
    engine, (row, other) = rows

    def fails(arrays) -> None:
        raise EvalFailed("gone")

    monkeypatch.setattr(guard, "evaluate", fails)
    steps_of(engine).end([row], EvalFailed("gone"))
    assert other.lost is not None
    assert other.failed
    assert storage_of(engine).arrays() == []


def test_reading_starts_the_count_of_failures_again(rows):
    engine, (row, _) = rows
    engine.health.failed()
    engine.step([row.seq])
    assert engine.health.failures == 0
