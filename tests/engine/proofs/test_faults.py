"""A fault in one row, at every boundary and in every place of the batch, is that row's alone."""

import mlx.core as mx
import pytest

from engine.errors import (
    ContextOverflow,
    EvalFailed,
    HookFailed,
    InvalidParams,
    NonFiniteLogits,
)
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import build_steps_first, row_of, storage_of
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
from tests.engine.proofs.row_features import Hooks, Text
from tests.engine.rigs import (
    prefill,
)

each_row = pytest.mark.parametrize("victim", ROWS)
each_kind = pytest.mark.parametrize("kind", KINDS)


# -- open


@each_row
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (SequenceParams((1, 10**6)), InvalidParams),
        (SequenceParams((1,), SamplingParams(logit_bias={999: 1.0})), InvalidParams),
        (SequenceParams((1,) * 600), ContextOverflow),
    ],
)
def test_a_request_that_cannot_be_opened_takes_no_row(victim: int, bad, error):
    engine = engine_of("llama")
    trio = Trio(engine)

    def refuse(call: str, number: int) -> None:
        if (call, number) in {("open", victim + 1), ("submit", victim + 2)}:
            with pytest.raises(error):
                engine.open(bad)

    trio.before = refuse
    assert trio.run() == calm("llama")
    assert_usable(engine, "llama")


# -- prefill


@each_kind
@each_row
@pytest.mark.parametrize("at_end", [False, True], ids=["first chunk", "last chunk"])
def test_a_prefill_that_raises_ends_its_row(kind: str, victim: int, at_end: bool):
    engine, model = watched(kind)
    trio = Trio(engine)
    seen = [-1]

    def arm(call: str, number: int) -> None:
        if call == f"prefill {victim}" and (number == 1 or at_end):
            seen[0] = model.calls + 1

    trio.before = arm
    last = {0: 4, 1: 2, 2: 3}[victim] if at_end else 1
    model.fails_in = lambda call: call == seen[0] and trio.calls[f"prefill {victim}"] == last
    assert_only(victim, trio.run(), calm(kind), EvalFailed)
    assert_usable(engine, kind)


@each_kind
@each_row
@pytest.mark.parametrize("where", ["evaluate", "read"], ids=["a chunk", "the last chunk"])
def test_a_prefill_that_the_device_cannot_compute_ends_its_row(
    kind: str, victim: int, where: str, device: Device
):
    engine = engine_of(kind)
    trio = Trio(engine)

    def arm(call: str, number: int) -> None:
        device.once = True
        device.fails = {where} if call == f"prefill {victim}" else set()

    trio.before = arm
    assert_only(victim, trio.run(), calm(kind), EvalFailed)
    assert_usable(engine, kind)


# -- steps


@each_kind
@each_row
@pytest.mark.parametrize("nth", [1, 2, STEPS - 1])
def test_logits_that_are_not_numbers_end_their_row(kind: str, victim: int, nth: int):
    engine, model = watched(kind)
    trio = Trio(engine)
    armed = [False]

    def arm(call: str, number: int) -> None:
        armed[0] = (call, number) == ("submit", nth)

    def spoiled(call: int, logits: mx.array) -> mx.array:
        if not armed[0]:
            return logits
        return logits.at[row_of(engine, trio.seqs[victim]).slot].add(mx.nan)

    trio.before, model.spoils = arm, spoiled
    assert_only(victim, trio.run(), calm(kind), NonFiniteLogits)
    assert_usable(engine, kind)


@each_kind
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("where", ["graph", "dispatch", "read"])
@pytest.mark.parametrize("holds", [False, True], ids=["started at once", "held"])
def test_a_failed_step_ends_its_rows_once_and_the_engine_continues(
    kind: str, nth: int, where: str, holds: bool, device: Device
):
    engine, model = watched(kind)
    build_steps_first(engine, holds)
    trio = Trio(engine)
    failures = [0]
    # The first step has none before it; a later one that is held starts in the next submit.
    started = nth + (holds and where == "dispatch" and nth > 1)

    def arm(call: str, number: int) -> None:
        armed = (call, number) == ("collect" if where == "read" else "submit", started)
        device.fails = {where} if armed else set()
        model.fails_in = lambda _: armed and where == "graph"
        failures[0] = max(failures[0], engine.health.failures)

    device.once = True
    trio.before = arm
    told = trio.run()
    for row in ROWS:
        assert [type(e) for e in told[row].errors] == [EvalFailed]
        assert told[row].tokens == calm(kind)[row].tokens[: len(told[row].tokens)]
        assert len(told[row].tokens) == nth
    assert failures[0] == 1
    assert_usable(engine, kind)
    assert engine.health.failures == 0


@each_kind
def test_rows_outside_a_failed_step_continue(kind: str, device: Device):
    engine = engine_of(kind)
    outside = engine.open(request(0))
    prefill(engine, outside, chunk=4)
    others = [engine.open(request(row)) for row in (1, 2)]
    for seq in others:
        prefill(engine, seq, chunk=4)
    device.fails = {"dispatch", "read"}
    outcomes = engine.step(others)
    assert [type(outcome.error) for outcome in outcomes] == [EvalFailed] * 2
    device.fails = set()
    for seq in others:
        engine.close(seq)
    written = [engine.last_token(outside)]
    written += [engine.step([outside])[0].token for _ in range(STEPS - 1)]
    assert written == calm(kind)[0].tokens
    engine.close(outside)
    assert_usable(engine, kind)


@each_kind
def test_kv_that_cannot_be_computed_ends_every_row_and_leaves_an_empty_engine(
    kind: str, device: Device
):
    engine = engine_of(kind)
    seqs = [engine.open(request(row)) for row in ROWS]
    for seq in seqs[:2]:
        prefill(engine, seq, chunk=4)
    ticket = engine.submit(seqs[:1])
    device.fails = {"dispatch", "read", "evaluate"}
    assert [type(outcome.error) for outcome in engine.step(seqs[1:2])] == [EvalFailed]
    device.fails = set()
    # What was computed before the fault is still told; there is no going on.
    assert [outcome.token for outcome in engine.collect(ticket)] == calm(kind)[0].tokens[1:2]
    assert [type(outcome.error) for outcome in engine.step(seqs[:1])] == [EvalFailed]
    assert isinstance(prefill(engine, seqs[2]).error, EvalFailed)
    assert not storage_of(engine).arrays()
    for seq in seqs:
        engine.close(seq)
    assert_usable(engine, kind)


# -- hooks


@each_kind
@each_row
@pytest.mark.parametrize("written", [0, 1, 4])
@pytest.mark.parametrize("in_finish", [False, True], ids=["mask", "finish"])
def test_a_hook_that_raises_ends_its_row(kind: str, victim: int, written: int, in_finish: bool):
    # A processor that raises in mlx-lm's batch desynchronises all rows.
    ids = len(PROMPTS[victim]) + written + in_finish
    engine = engine_of(kind)
    told = Trio(engine, hooks={victim: Hooks(ids, in_finish=in_finish)}).run()
    others = undisturbed(kind, hooks={victim: Hooks()})
    assert_only(victim, told, others, HookFailed)
    assert len(told[victim].tokens) == written
    assert_usable(engine, kind)


@each_row
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_text_that_cannot_be_decoded_ends_its_row(victim: int, nth: int):
    engine = engine_of("llama")
    told = Trio(engine, text={victim: Text(nth)}).run()
    assert_only(victim, told, calm("llama"), HookFailed)
    assert_usable(engine, "llama")
