"""What is not handed over, and what a fault in the midst of it leaves."""

from dataclasses import replace

import pytest

from engine import guard
from engine.errors import (
    EvalFailed,
    SnapshotError,
    SnapshotMismatch,
    UnknownSequence,
    UnsupportedModel,
)
from engine.params import SequenceParams
from tests.engine.inside import layers_of, row_of, rows_of, steps_of
from tests.engine.rigs import run_alone, tiny_engine
from tests.engine.transfer_rigs import KINDS, SEEDED, begun, engine_of, request, rest_of

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_failed_row_is_neither_kept_nor_exported(kind):
    engine = engine_of(kind)
    seq = begun(engine, request())
    steps_of(engine).end([row_of(engine, seq)], EvalFailed("out of luck"))
    with pytest.raises(SnapshotError, match="has failed"):
        engine.transfer.snapshot(seq)
    with pytest.raises(SnapshotError, match="has failed"):
        engine.transfer.export_prefix(seq)


def test_another_model_s_row_is_refused_by_what_differs():
    engine = tiny_engine("llama")
    snapshot = engine.transfer.snapshot(begun(engine, request()))
    retrained = tiny_engine("llama", seed=1)
    deeper = tiny_engine("llama", num_hidden_layers=3)
    with pytest.raises(SnapshotMismatch, match="weights") as refused:
        retrained.transfer.restore(snapshot)
    assert len(refused.value.differences) == 1
    with pytest.raises(SnapshotMismatch, match="layers 2 there, 3 here"):
        deeper.transfer.restore(snapshot)
    with pytest.raises(SnapshotMismatch, match="family llama there, gemma3 here"):
        engine_of("ring").transfer.restore(snapshot)
    with pytest.raises(SnapshotMismatch):
        retrained.transfer.open_with_prefix(request(40), snapshot.prefix)
    masked = engine_of("window as a mask")
    with pytest.raises(SnapshotMismatch, match="storage window as a mask there, ring here"):
        engine_of("ring").transfer.restore(masked.transfer.snapshot(begun(masked, request())))


def test_a_family_that_runs_alone_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("engine.kv.choose.SOLO_FAMILIES", {"llama": "a test says so"})
    engine = tiny_engine("llama")
    assert engine.choice.kind == "one row at a time"
    seq = begun(engine, request())
    for take in (engine.transfer.snapshot, engine.transfer.export_prefix):
        with pytest.raises(UnsupportedModel):
            take(seq)
    assert len(rest_of(engine, seq)) == 10


@every_kind
@pytest.mark.parametrize("broken_layer", [0, 1])
def test_a_restore_that_fails_half_way_leaves_no_row_and_no_trace(kind, broken_layer, monkeypatch):
    params, neighbour = request(sampling=SEEDED), request(12, shift=9)
    expected, beside = (run_alone(engine_of(kind), one).tokens for one in (params, neighbour))
    engine = engine_of(kind)
    source, seq = begun(engine, params), begun(engine, neighbour)
    snapshot, prefix = engine.transfer.snapshot(source), engine.transfer.export_prefix(source)
    longer = SequenceParams((*prefix.ids, 1, 2), max_tokens=4)
    engine.close(source)
    layer = layers_of(engine)[broken_layer]
    broken = pytest.MonkeyPatch()
    broken.setattr(type(layer), "load", _raiser(type(layer).load, layer))
    for call in (
        lambda: engine.transfer.restore(snapshot),
        lambda: engine.transfer.open_with_prefix(longer, prefix),
    ):
        with pytest.raises(SnapshotError, match="does not fit"):
            call()
        assert list(rows_of(engine)) == [seq]
    broken.undo()
    assert engine.health.failures == 0
    restored = engine.transfer.restore(snapshot)
    engine.step([seq, restored])
    assert rest_of(engine, restored) == expected
    assert rest_of(engine, seq) == beside


def _raiser(load, broken):
    def loads(layer, *values):
        if layer is broken:
            raise ValueError("the device fell over")
        return load(layer, *values)

    return loads


def test_a_backend_fault_while_a_row_is_put_in_counts_once_and_spares_the_others(monkeypatch):
    engine = tiny_engine()
    neighbour = request(12, shift=9)
    beside = run_alone(tiny_engine(), neighbour).tokens
    snapshot = engine.transfer.snapshot(begun(engine, request()))
    seq = begun(engine, neighbour)

    def fails(arrays):
        raise EvalFailed("lost the device")

    with monkeypatch.context() as broken:
        broken.setattr(guard, "dispatch", fails)
        with pytest.raises(EvalFailed):
            engine.transfer.restore(snapshot)
    assert engine.health.failures == 1
    assert rest_of(engine, seq) == beside


def test_a_fault_while_a_row_is_copied_leaves_the_row_as_it_was(monkeypatch):
    engine = tiny_engine()
    expected = run_alone(tiny_engine(), request()).tokens
    seq = begun(engine, request())

    def fails(arrays):
        raise EvalFailed("lost the device")

    for take in (engine.transfer.snapshot, engine.transfer.export_prefix):
        with monkeypatch.context() as broken:
            broken.setattr(guard, "evaluate", fails)
            with pytest.raises(EvalFailed):
                take(seq)
    assert rest_of(engine, seq) == expected


def test_what_is_not_open_cannot_be_taken():
    engine = tiny_engine()
    for take in (engine.transfer.snapshot, engine.transfer.export_prefix, engine.cached_tokens):
        with pytest.raises(UnknownSequence):
            take(99)


def test_kv_of_other_shapes_is_refused_and_no_row_stays():
    engine = tiny_engine()
    snapshot = engine.transfer.snapshot(begun(engine, request()))
    layers = tuple(tuple(a[:, :1, :, :8] for a in layer) for layer in snapshot.kv.layers)
    wrong = replace(snapshot, kv=replace(snapshot.kv, layers=layers[:1]))
    before = list(rows_of(engine))
    with pytest.raises(SnapshotError, match="does not fit"):
        engine.transfer.restore(wrong)
    assert list(rows_of(engine)) == before
