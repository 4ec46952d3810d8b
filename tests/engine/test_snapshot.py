"""Snapshots as values: cut, checked, and complete."""

from dataclasses import replace

import pytest

from engine.errors import SnapshotError
from engine.params import SamplingParams
from engine.snapshot import CachedPrefix
from tests.engine.handover_rigs import MIROSTAT, SEEDED, begun, request, rest_of
from tests.engine.rigs import tiny_engine


def test_a_cut_row_is_the_row_it_was(tmp_path):
    engine, other = tiny_engine(), tiny_engine()
    params = request(30, sampling=SEEDED)
    expected = rest_of(engine, begun(engine, params))
    seq = begun(engine, params)
    for _ in range(5):
        engine.step([seq])
    snapshot = engine.snapshot(seq)
    for tokens in (30, 31, 34, 35):
        cut = snapshot.cut(tokens)
        assert cut.written == tuple(expected[: tokens - 29])
        assert rest_of(other, other.restore(cut)) == expected
    reading = snapshot.cut(16)
    assert (reading.written, reading.kv.tokens) == ((), 16)
    with pytest.raises(SnapshotError, match="no first 36"):
        snapshot.cut(36)


def test_a_row_whose_sampler_learns_is_not_cut():
    engine = tiny_engine()
    seq = begun(engine, request(sampling=MIROSTAT))
    engine.step([seq])
    snapshot = engine.snapshot(seq)
    assert snapshot.cut(snapshot.kv.tokens) is snapshot
    with pytest.raises(SnapshotError, match="mirostat"):
        snapshot.cut(30)


def test_a_snapshot_that_breaks_the_length_law_cannot_be_made():
    engine = tiny_engine()
    snapshot = engine.snapshot(begun(engine, request()))
    for written in ((1, 2), (1, 2, 3)):
        with pytest.raises(SnapshotError, match="KV of 30 tokens for a row"):
            replace(snapshot, written=written)
    with pytest.raises(SnapshotError, match="KV of 30 tokens for 29 ids"):
        CachedPrefix(snapshot.model, snapshot.ids[:29], snapshot.kv)


def test_the_seed_that_was_drawn_goes_along():
    engine = tiny_engine()
    unseeded = request(sampling=SamplingParams(temperature=1.0))
    snapshot = engine.snapshot(begun(engine, unseeded))
    assert snapshot.params.sampling.seed is not None
