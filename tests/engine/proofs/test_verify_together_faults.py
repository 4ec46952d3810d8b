"""What a fault does to a round of several rows: to its own row, or to all of them once."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine import guard
from engine.engine import Engine
from engine.errors import EvalFailed, HookFailed, NonFiniteLogits, RewindFailed
from engine.finish import FinishCause
from engine.outcome import SeqId, VerifyOutcome
from engine.params import SequenceParams
from tests.engine.inside import row_of, storage_of
from tests.engine.rigs import Watched, assert_length_law, begun, cycle_engine, prefill

DRAFTS = [(5, 6, 7), (), (5, 0, 0, 0)]
"""After 4, 11 and 4: right, empty, and right for one token."""
WRITTEN = [[5, 6, 7, 8], [12], [5, 6]]
ROWS = ((3,), (9, 10), (1, 2, 3))


def following(token: int, count: int) -> list[int]:
    """What the cycle model writes."""
    return [(token + i) % 16 for i in range(1, count + 1)]


class BrokenGrammar:
    """A mask hook that fails at one place, or a finish hook."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.armed = False

    def mask(self, ids: Any) -> np.ndarray | None:
        if self.armed and self.where == "mask":
            raise ValueError("no such state")
        return None

    def finish(self, ids: Any) -> FinishCause | None:
        if self.armed and self.where == "finish":
            raise ValueError("no such state")
        return None


def round_of_three(
    victim: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Engine, list[SeqId], list[VerifyOutcome], list[np.ndarray]]:
    """One round of which one row meets a fault; what its neighbours' KV is afterwards."""
    engine = cycle_engine()
    hooks = BrokenGrammar(fault)
    seqs = []
    for at, ids in enumerate(ROWS):
        seqs.append(engine.open(SequenceParams(ids), hooks=hooks if at == victim else None))
        prefill(engine, seqs[-1])
    hooks.armed = True
    slot = row_of(engine, seqs[victim]).slot
    watched, storage = Watched(engine), storage_of(engine)
    if fault == "nan":
        # The row is tried once more without its draft, alone.
        watched.spoils = lambda call, logits: logits.at[slot if len(logits) > 1 else 0].add(mx.nan)
    if fault == "rewind":
        rewind = storage.rewind

        def stuck(at: int, tokens: int) -> None:
            if at == slot:
                raise RewindFailed("stuck")
            rewind(at, tokens)

        monkeypatch.setattr(storage, "rewind", stuck)
    outcomes = engine.verify_together(dict(zip(seqs, DRAFTS, strict=True)))
    monkeypatch.undo()
    kept = [
        np.array(array[row_of(engine, seq).slot, :, : engine.drafting.held_tokens(seq)])
        for at, seq in enumerate(seqs)
        for array in storage.arrays()
        if at != victim
    ]
    return engine, seqs, outcomes, kept


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize(
    ("fault", "error"),
    [("nan", NonFiniteLogits), ("mask", HookFailed), ("finish", HookFailed),
     ("rewind", RewindFailed)],
)  # fmt: skip
def test_a_row_that_fails_leaves_its_neighbours_as_without_the_fault(
    victim: int, fault: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    _, _, healthy, clean = round_of_three(victim, "none", monkeypatch)
    assert [[step.token for step in one.steps] for one in healthy] == WRITTEN
    engine, seqs, outcomes, kept = round_of_three(victim, fault, monkeypatch)
    struck = outcomes[victim]
    assert isinstance(struck.error, error)
    assert (struck.steps[-1].error, struck.accepted) == (struck.error, 0)
    assert [out for out in outcomes if out is not struck] == [
        out for at, out in enumerate(healthy) if at != victim
    ]
    for one, two in zip(kept, clean, strict=True):
        np.testing.assert_array_equal(one, two)
    assert engine.health.failures == 0
    if fault != "rewind":
        assert engine.drafting.held_tokens(seqs[victim]) == len(ROWS[victim])
    engine.close(seqs[victim])
    rest = [seq for seq in seqs if seq != seqs[victim]]
    assert_length_law(engine, rest)
    newest = {seq: engine.last_token(seq) for seq in rest}
    for outcome in engine.verify_together({seq: following(newest[seq], 2) for seq in rest}):
        tokens = [step.token for step in outcome.steps]
        assert tokens == following(newest[outcome.seq], 3)


@pytest.mark.parametrize("fault", ["graph", "read", "shape"])
def test_a_shared_forward_that_fails_ends_its_rows_once_and_the_engine_continues(
    fault, monkeypatch
):
    engine = cycle_engine()
    *seqs, spared = begun(engine, *ROWS, (7,))
    watched = Watched(engine)
    watched.fails_in = lambda call: fault == "graph" and call == 1
    watched.spoils = lambda call, logits: logits[:, :2] if fault == "shape" else logits

    def lost(array: mx.array) -> list:
        raise EvalFailed("lost the device")

    if fault == "read":
        monkeypatch.setattr(guard, "read", lost)
    outcomes = engine.verify_together(dict(zip(seqs, DRAFTS, strict=True)))
    monkeypatch.undo()
    assert [one.seq for one in outcomes] == seqs
    for outcome, draft in zip(outcomes, DRAFTS, strict=True):
        assert isinstance(outcome.error, EvalFailed)
        assert [step.error for step in outcome.steps] == [outcome.error]
        assert (outcome.drafted, outcome.accepted) == (len(draft), 0)
    assert engine.health.failures == 1
    held = [engine.drafting.held_tokens(seq) for seq in seqs]
    assert held == [len(ids) for ids in ROWS], "as before the round"
    watched.spoils = lambda call, logits: logits
    for seq in seqs:
        engine.close(seq)
    assert [step.token for step in engine.verify(spared, (9, 10)).steps] == [9, 10, 11]
    again = begun(engine, (3,), (5,))
    outcomes = engine.verify_together({again[0]: (5,), spared: (), again[1]: ()})
    assert [[step.token for step in one.steps] for one in outcomes] == [[5, 6], [12], [7]]


def test_a_row_that_was_lost_fails_in_order_and_the_others_are_verified():
    engine = cycle_engine()
    first, lost, last = begun(engine, *ROWS)
    error = row_of(engine, lost).lost = EvalFailed("gone")
    outcomes = engine.verify_together({first: (5,), lost: (12,), last: ()})
    assert [outcome.seq for outcome in outcomes] == [first, lost, last]
    assert [outcome.error for outcome in outcomes] == [None, error, None]
    assert [[step.token for step in one.steps] for one in outcomes] == [[5, 6], [None], [5]]
    assert engine.health.failures == 0
