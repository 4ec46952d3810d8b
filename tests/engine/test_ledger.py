import mlx.core as mx
import pytest

from engine import guard
from engine.commit import fail
from engine.errors import EvalFailed, HookFailed, RewindFailed, UnknownSequence
from engine.finish import FinishCause
from engine.outcome import StepOutcome
from engine.params import SequenceParams
from tests.engine.inside import row_of, storage_of, table_of
from tests.engine.rigs import cycle_engine, prefill, run_alone, tiny_engine


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
        rows[0]._table.row(77)


def test_settling_a_row_that_goes_on_cuts_nothing(rows):
    engine, (row, _) = rows
    engine.submit([row.seq])
    outcome = StepOutcome(row.seq, 5)
    assert table_of(engine).settle(row, outcome) is outcome
    assert len(row.in_flight) == 1
    assert storage_of(engine).length(row.slot) == 2


def test_settling_a_finished_row_cuts_its_appends_in_flight(rows):
    engine, (row, other) = rows
    seqs = [row.seq, other.seq]
    engine.submit(seqs)
    engine.submit(seqs)
    table_of(engine).settle(row, StepOutcome(row.seq, 5, finish=FinishCause.LENGTH))
    assert row.in_flight == []
    assert storage_of(engine).length(row.slot) == 1
    assert storage_of(engine).length(other.slot) == 3


def test_a_cut_that_fails_beats_the_finish(rows, monkeypatch):
    engine, (row, _) = rows

    def refuses(slot: int, tokens: int) -> None:
        raise RewindFailed("no way back")

    monkeypatch.setattr(storage_of(engine), "rewind", refuses)
    outcome = table_of(engine).settle(row, StepOutcome(row.seq, 5, finish=FinishCause.LENGTH))
    assert isinstance(outcome.error, RewindFailed)
    assert outcome.finish is None
    assert row.failed


def test_a_cut_that_fails_does_not_hide_why_the_row_failed(rows, monkeypatch):
    engine, (row, _) = rows

    def refuses(slot: int, tokens: int) -> None:
        raise RewindFailed("no way back")

    monkeypatch.setattr(storage_of(engine), "rewind", refuses)
    outcome = table_of(engine).settle(row, fail(row, HookFailed("the grammar broke")))
    assert isinstance(outcome.error, HookFailed)


def test_the_cache_is_cleared_once_in_so_many_tokens(monkeypatch):
    clears = []
    monkeypatch.setattr(mx, "clear_cache", lambda: clears.append(1))
    for clear_every, expected in ((4, 3), (0, 0)):
        engine = tiny_engine()
        table_of(engine)._clear_every = clear_every
        clears.clear()
        run_alone(engine, SequenceParams((5,), max_tokens=15))
        assert len(clears) == expected


def test_a_failure_counts_once_however_many_rows_it_ends(rows):
    engine, both = rows
    outcomes = table_of(engine).end(both, EvalFailed("gone"))
    assert [outcome.seq for outcome in outcomes] == [row.seq for row in both]
    assert engine.health.failures == 1
    assert all(row.failed for row in both)
    assert all(row.lost is None for row in both)


def test_a_fault_of_a_hook_says_nothing_about_the_backend(rows):
    engine, (row, _) = rows
    table_of(engine).end([row], HookFailed("the grammar broke"))
    assert engine.health.failures == 0


def test_rows_are_lost_when_the_shared_arrays_are(rows, monkeypatch):
    engine, (row, other) = rows

    def fails(arrays) -> None:
        raise EvalFailed("gone")

    monkeypatch.setattr(guard, "evaluate", fails)
    table_of(engine).end([row], EvalFailed("gone"))
    assert other.lost is not None
    assert other.failed
    assert storage_of(engine).arrays() == []


def test_reading_starts_the_count_of_failures_again(rows):
    engine, (row, _) = rows
    engine.health.failed()
    engine.step([row.seq])
    assert engine.health.failures == 0
