"""What a failure ends, what it leaves, and what it counts as."""

import math

import mlx.core as mx
import numpy as np
import pytest

from engine import guard
from engine.errors import EvalFailed, NonFiniteLogits
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import row_of, storage_of
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    begun,
    cycle_engine,
    prefill,
    run_alone,
    run_together,
)

VOCAB = 16


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("pipelined", [True, False])
def test_a_forward_that_raises_ends_its_rows_and_the_engine_continues(failing, pipelined):
    engine = cycle_engine()
    watched = Watched(engine)
    watched.fails_in = lambda call: call == failing
    answers = run_together(
        engine,
        [SequenceParams((3, 4), max_tokens=8), SequenceParams((9, 10), max_tokens=8)],
        pipelined=pipelined,
    )
    failed = [answer for answer in answers if answer.last.error is not None]
    assert len(failed) == (1 if failing <= 4 else 2)
    for answer in failed:
        assert isinstance(answer.last.error, EvalFailed)
        assert "the device fell over" in str(answer.last.error)
    assert [answer.tokens for answer in answers if answer not in failed] in (
        [],
        [[5, 6, 7, 8, 9, 10, 11, 12]],
        [[11, 12, 13, 14, 15, 0, 1, 2]],
    )
    assert storage_of(engine).arrays() == []
    watched.fails_in = lambda call: False
    assert run_alone(engine, SequenceParams((3,), max_tokens=3)).tokens == [4, 5, 6]


@pytest.mark.parametrize("kind", guard.BACKEND_ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("failing", [1, 2, 3], ids=["a piece", "the first token", "a step"])
def test_whatever_the_backend_throws_in_a_forward_ends_the_row(kind, failing: int):
    engine = cycle_engine()
    watched = Watched(engine)
    watched.error = kind("out of memory")
    watched.fails_in = lambda call: call == failing
    answer = run_alone(engine, SequenceParams((3, 4), max_tokens=8))
    assert isinstance(answer.last.error, EvalFailed)
    assert "out of memory" in str(answer.last.error)
    assert engine.health.failures == 1


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_shared_failure_counts_once(pipelined: bool):
    engine = cycle_engine()
    watched = Watched(engine)
    watched.fails_in = lambda call: call == 8
    requests = [SequenceParams((3, 4), max_tokens=9) for _ in range(3)]
    answers = run_together(engine, requests, pipelined=pipelined)
    assert all(isinstance(answer.last.error, EvalFailed) for answer in answers)
    assert engine.health.failures == 1


def test_eight_failures_in_a_row_make_the_engine_sick_and_a_success_well():
    engine = cycle_engine()
    watched = Watched(engine)
    watched.fails_in = lambda call: True
    for _ in range(8):
        assert engine.health.ok
        run_alone(engine, SequenceParams((3,)))
    assert not engine.health.ok
    watched.fails_in = lambda call: False
    run_alone(engine, SequenceParams((3,), max_tokens=1))
    assert engine.health.ok


def test_logits_that_are_not_numbers_end_that_row_only():
    engine = cycle_engine()
    spoilt, healthy = begun(engine, (3,), (9,))
    watched = Watched(engine)
    slot = row_of(engine, spoilt).slot

    def spoil(call: int, logits: mx.array) -> mx.array:
        return logits.at[slot].add(mx.nan)

    watched.spoils = spoil
    outcomes = {one.seq: one for one in engine.step([spoilt, healthy])}
    assert isinstance(outcomes[spoilt].error, NonFiniteLogits)
    assert outcomes[healthy].token == 11
    assert engine.health.ok
    assert engine.health.failures == 0


SAMPLING = [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 3}, {"logprobs": 2}]


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("token", [0, 5, 15])
def test_one_nan_among_the_logits_ends_its_row(sampling, token):
    engine = cycle_engine()
    spoilt, healthy = begun(engine, (3,), (9,), sampling=SamplingParams(seed=1, **sampling))
    watched = Watched(engine)
    slot = row_of(engine, spoilt).slot
    watched.spoils = lambda _call, logits: logits.at[slot, :, token].add(mx.nan)
    outcomes = {one.seq: one for one in engine.step([spoilt, healthy])}
    assert isinstance(outcomes[spoilt].error, NonFiniteLogits)
    assert outcomes[healthy].error is None


class AllowOne:
    """A mask that allows one token."""

    def mask(self, ids):
        del ids
        return np.where(np.arange(VOCAB) == 4, 0, -np.inf).astype(np.float32)

    def finish(self, ids):
        del ids


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_row_whose_every_token_is_banned_ends_with_an_error(sampling, is_masked):
    engine = cycle_engine()
    banned = {4: -math.inf} if is_masked else dict.fromkeys(range(VOCAB), -math.inf)
    params = SamplingParams(seed=1, logit_bias=banned, **sampling)
    hooks = AllowOne() if is_masked else None
    first = engine.open(SequenceParams((3,), params), hooks=hooks)
    assert isinstance(prefill(engine, first).error, NonFiniteLogits)
    joined = engine.open(SequenceParams((3,), params), hooks=hooks)
    (healthy,) = begun(engine, (9,))
    engine.join(joined)
    outcomes = {one.seq: one for one in engine.step([joined, healthy])}
    assert isinstance(outcomes[joined].error, NonFiniteLogits)
    assert outcomes[healthy].token == 11


def test_a_read_that_fails_ends_the_rows_of_that_step_once(monkeypatch):
    engine = cycle_engine()
    seqs = begun(engine, (3,), (9,))
    ticket, later = engine.submit(seqs), engine.submit(seqs)

    def fails(array: mx.array) -> list:
        raise EvalFailed("lost the device")

    monkeypatch.setattr(guard, "read", fails)
    outcomes = engine.collect(ticket)
    assert [one.seq for one in outcomes] == seqs
    assert all(isinstance(one.error, EvalFailed) for one in outcomes)
    assert engine.collect(later) == []
    assert engine.health.failures == 1


def test_arrays_that_cannot_be_computed_lose_every_row_but_not_the_engine(monkeypatch):
    engine = cycle_engine()
    struck, other, third = begun(engine, (3,), (9,), (1,))
    watched = Watched(engine)
    watched.fails_in = lambda call: call == 1
    evaluate = guard.evaluate

    def fails(arrays) -> None:
        raise EvalFailed("gone")

    monkeypatch.setattr(guard, "evaluate", fails)
    (outcome,) = engine.step([struck])
    monkeypatch.setattr(guard, "evaluate", evaluate)
    assert isinstance(outcome.error, EvalFailed)
    # Rows opened meanwhile take the slots anew; those that were lost must not touch them.
    seqs = begun(engine, (5, 6), (7,))
    ticket = engine.submit([other, *seqs])
    outcomes = {one.seq: one for one in engine.collect(ticket)}
    assert isinstance(outcomes[other].error, EvalFailed)
    assert [outcomes[seq].token for seq in seqs] == [8, 9]
    assert_length_law(engine, seqs)
    engine.close(seqs[1])
    for _ in range(3):
        engine.step(seqs[:1])
    assert engine.ids(seqs[0]) == (5, 6, 7, 8, 9, 10, 11)
    for seq in (struck, other, third):
        engine.close(seq)
    assert_length_law(engine, seqs[:1])
