"""Ends that go wrong: cuts and rounds that fail, clients that leave, slots with a past, health."""

from typing import Any

import mlx.core as mx
import pytest

from engine.errors import (
    EvalFailed,
    HookFailed,
    NonFiniteLogits,
    RewindFailed,
)
from engine.finish import FinishCause
from engine.guard import FAILURES_ALLOWED
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import inner_model, row_of, storage_of
from tests.engine.proofs.conftest import Device
from tests.engine.proofs.faults import (
    KINDS,
    PROMPTS,
    ROWS,
    STEPS,
    Trio,
    assert_only,
    assert_usable,
    calm,
    engine_of,
    request,
    undisturbed,
    watched,
)
from tests.engine.proofs.row_features import Hooks, StopAfter
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    prefill,
    run_alone,
    run_together,
)

each_row = pytest.mark.parametrize("victim", ROWS)
each_kind = pytest.mark.parametrize("kind", KINDS)


# -- rewinding


@each_kind
@each_row
@pytest.mark.parametrize("cause", [FinishCause.STOP_SEQUENCE, FinishCause.EOS])
def test_a_cut_that_fails_beats_the_finish_of_the_same_tick(
    kind: str, victim: int, cause: FinishCause, monkeypatch: pytest.MonkeyPatch
):
    end = calm(kind)[victim].tokens[3]
    changes: dict[str, Any] = {}
    if cause is FinishCause.EOS:
        changes["requests"] = {victim: request(victim, stop_ids=frozenset({end}))}
    else:
        changes["text"] = {victim: StopAfter(4)}
    engine = engine_of(kind)
    others = undisturbed(kind, **changes)
    assert others[victim].finish is cause
    if cause is FinishCause.STOP_SEQUENCE:
        changes["text"] = {victim: StopAfter(4)}
    trio = Trio(engine, **changes)
    rewind = storage_of(engine).rewind

    def refused(slot: int, tokens: int) -> None:
        if tokens and slot == row_of(engine, trio.seqs[victim]).slot:
            raise RewindFailed("stuck")
        rewind(slot, tokens)

    monkeypatch.setattr(storage_of(engine), "rewind", refused)
    assert_only(victim, trio.run(), others, RewindFailed)
    monkeypatch.undo()
    assert_usable(engine, kind)


def spoil_round(fault: str, model: Watched, monkeypatch: pytest.MonkeyPatch, storage: Any) -> None:
    """Arrange that the next verify round fails."""
    spoils = {
        # Once more in the plain step that takes its place.
        "nan": lambda call, logits: logits.at[:, min(1, logits.shape[1] - 1)].add(mx.nan),
        "width": lambda call, logits: logits[:, :1],
    }
    model.spoils = spoils.get(fault, model.spoils)
    model.fails_in = lambda call: fault == "graph"
    if fault == "rewind":

        def refused(slot: int, tokens: int) -> None:
            raise RewindFailed("stuck")

        monkeypatch.setattr(storage, "rewind", refused)


@each_row
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("graph", EvalFailed),
        ("read", EvalFailed),
        ("width", EvalFailed),
        ("nan", NonFiniteLogits),
        ("mask", HookFailed),
        ("rewind", RewindFailed),
    ],
)
def test_a_verify_round_that_fails_ends_its_row(
    victim: int, fault: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, device: Device
):
    others = calm("llama")
    engine, model = watched("llama")
    hooks = Hooks(len(PROMPTS[victim]) + 2 if fault == "mask" else None)
    seqs = []
    for row in ROWS:
        seqs.append(engine.open(request(row), hooks=hooks if row == victim else None))
        prefill(engine, seqs[-1], chunk=4)
    spoil_round(fault, model, monkeypatch, storage_of(engine))
    device.fails = {fault}
    outcome = engine.verify(seqs[victim], [others[victim].tokens[1], 0, 0])
    assert isinstance(outcome.error, error)
    assert outcome.steps[-1].error is outcome.error
    monkeypatch.undo()
    device.fails = set()
    model.fails_in, model.spoils = lambda call: False, lambda call, logits: logits
    neighbours = [row for row in ROWS if row != victim]
    written = {seqs[row]: [engine.last_token(seqs[row])] for row in neighbours}
    for _ in range(STEPS - 1):
        for step in engine.step(written):
            written[step.seq].append(step.token)
    assert_length_law(engine, [])
    assert [written[seqs[row]] for row in neighbours] == [others[row].tokens for row in neighbours]
    for seq in seqs:
        engine.close(seq)
    assert_usable(engine, "llama")


# -- closing, and what a slot leaves behind


@each_kind
@each_row
@pytest.mark.parametrize("moment", ["filling", "between", "in flight", "twice in flight"])
def test_a_client_that_goes_away_disturbs_nobody(kind: str, victim: int, moment: str):
    # mlx-lm#677, #1148: cancelled requests went on.
    engine = engine_of(kind)
    seqs = [engine.open(request(row)) for row in ROWS]
    for row in ROWS:
        if row != victim or moment != "filling":
            prefill(engine, seqs[row], chunk=4)
    neighbours = [seqs[row] for row in ROWS if row != victim]
    together = neighbours if moment == "filling" else seqs
    tokens = {seq: [engine.last_token(seq)] for seq in neighbours}
    tickets = [engine.submit(together)] if moment != "between" else []
    if moment == "twice in flight":
        tickets.append(engine.submit(together))
    engine.close(seqs[victim])
    engine.close(seqs[victim])
    for _ in range(STEPS - 1):
        if not tickets:
            tickets.append(engine.submit(neighbours))
        for outcome in engine.collect(tickets.pop(0)):
            tokens[outcome.seq].append(outcome.token)
    for row in ROWS:
        if row != victim:
            assert tokens[seqs[row]] == calm(kind)[row].tokens
            engine.close(seqs[row])
    assert_usable(engine, kind)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gemma3 mask", "hybrid"])
@pytest.mark.parametrize("read", ["told", "cancelled in flight", "cancelled while filling"])
def test_kv_that_is_no_number_never_reaches_the_next_row_of_its_slot(kind: str, read: str):
    # A masked entry weighs nothing, but nothing times NaN is NaN.
    family, _, mask = kind.partition(" ")
    engine = engine_of(family, context=64 if mask else 512)
    beside = engine.open(request(0, max_tokens=40))
    prefill(engine, beside)
    spoiled = engine.open(SequenceParams((1, 2, 3, 4, 5, 6, 7, 8, 9), max_tokens=40))
    embed = inner_model(engine).model.embed_tokens
    weight = embed.weight
    poisoned = weight.at[9].add(mx.nan)
    if read == "cancelled while filling":
        embed.weight = weight.at[3].add(mx.nan)
        engine.prefill(spoiled, next(iter(chunks_of(9))))
    elif read == "cancelled in flight":
        prefill(engine, spoiled)
        embed.weight = weight.at[engine.last_token(spoiled)].add(mx.nan)
        engine.submit([spoiled])
    else:
        embed.weight = poisoned
        assert isinstance(prefill(engine, spoiled).error, NonFiniteLogits)
    slot = row_of(engine, spoiled).slot
    engine.close(spoiled)
    embed.weight = weight
    short = SequenceParams((77,), SamplingParams(temperature=0, seed=0), max_tokens=6)
    alone = run_alone(engine_of(family, context=64 if mask else 512), short).tokens
    seq = engine.open(short)
    assert row_of(engine, seq).slot == slot
    tokens = [prefill(engine, seq).token]
    for _ in range(5):
        tokens += [o.token for o in engine.step([seq, beside]) if o.seq == seq]
    assert tokens == alone


def chunks_of(tokens: int) -> Any:
    from engine.prefill import plan_prefill

    return plan_prefill(prompt_tokens=tokens, chunk_tokens=8)


def test_an_end_token_leaves_nothing_of_the_step_behind_it():
    # The step after the end token was in flight and never read: its KV may be anything.
    engine = engine_of("llama")
    beside = engine.open(request(0, max_tokens=40))
    prefill(engine, beside)
    params = SequenceParams((1, 2, 3), SamplingParams(temperature=0, seed=0), max_tokens=40)
    tokens = run_alone(engine_of("llama"), params).tokens
    ending = engine.open(
        SequenceParams((1, 2, 3), params.sampling, stop_ids=frozenset(tokens[2:3]))
    )
    prefill(engine, ending)
    engine.step([ending])
    embed = inner_model(engine).model.embed_tokens
    weight = embed.weight
    first = engine.submit([ending])
    embed.weight = weight.at[tokens[2]].add(mx.nan)
    engine.submit([ending])
    embed.weight = weight
    (outcome,) = engine.collect(first)
    assert outcome.finish is FinishCause.EOS
    engine.close(ending)
    short = SequenceParams((77,), SamplingParams(temperature=0, seed=0), max_tokens=3)
    seq = engine.open(short)
    written = [prefill(engine, seq).token]
    for _ in range(2):
        written += [o.token for o in engine.step([seq, beside]) if o.seq == seq]
    assert written == run_alone(engine_of("llama"), short).tokens


# -- health


def test_eight_failures_in_a_row_end_the_engine_and_a_success_starts_again():
    engine, model = watched("llama")
    assert FAILURES_ALLOWED == 8
    for failures in range(1, FAILURES_ALLOWED + 1):
        assert engine.health.ok
        model.spoils = lambda call, logits: logits
        seqs = [engine.open(request(row)) for row in ROWS]
        firsts = [prefill(engine, seq) for seq in seqs] if failures == 1 else []
        assert all(first.error is None for first in firsts)
        model.fails_in = lambda call: True
        if failures == 1:
            outcomes = engine.step(seqs)
            assert [type(outcome.error) for outcome in outcomes] == [EvalFailed] * 3
        else:
            assert isinstance(prefill(engine, seqs[0]).error, EvalFailed)
        assert engine.health.failures == failures
        for seq in seqs:
            engine.close(seq)
    assert not engine.health.ok
    model.fails_in = lambda call: False
    run_together(engine, [request(0)])
    assert engine.health.ok
    assert engine.health.failures == 0


def test_a_fault_of_one_row_does_not_count_as_the_backends():
    engine = engine_of("llama")
    Trio(engine, hooks={1: Hooks(len(PROMPTS[1]) + 2)}).run()
    assert engine.health.failures == 0
