import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from engine.errors import SnapshotCorrupt, SnapshotError
from engine.kv import snapshot_file
from engine.kv.snapshot_file import load_prefix, load_snapshot, save_snapshot
from engine.kv.storage import RowSnapshot
from engine.kv.transfer import CachedPrefix, SequenceSnapshot
from engine.lookup.auto_governor import AutoGovernor
from engine.lookup.governor import FixedGovernor, GatedGovernor, GradedGovernor
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, LoopRule, SamplingParams, SequenceParams, SpeculationParams
from tests.engine.inside import row_of
from tests.engine.rigs import prefill, tiny_engine
from tests.engine.transfer_rigs import (
    GREEDY,
    KINDS,
    MIROSTAT,
    SEEDED,
    begun,
    engine_of,
    request,
    rest_of,
    steps_of,
)

ROOT = Path(__file__).parents[3]

FULL = SequenceParams(
    prompt_ids=(5, 6, 7),
    sampling=replace(SEEDED, seed=2**53 - 1, logit_bias={3: -float("inf"), 258: 0.1}, logprobs=2),
    max_tokens=40,
    min_tokens=2,
    context_tokens=77,
    stop_ids=frozenset({200, 100}),
    ignore_eos=True,
    loop=LoopRule(1, 20, 12),
    choice=3,
    speculation=SpeculationParams(2, 1, 5, LookupPolicy.GATED),
)

GOVERNORS = [
    FixedGovernor(4),
    replace(GradedGovernor.fresh(7), accepted_ema=1 / 3, resting=2, next_rest=8),
    GatedGovernor(7, accepted_ema=0.1, is_drafting=False, misses=2),
    AutoGovernor.fresh(2, WidthCosts((1.0, 1.25, 1.5))).after_verify(
        agreement=3, drafted=2, accepted=1
    ),
]

RESTORE_IN_ANOTHER_PROCESS = """
import json, sys
from pathlib import Path
from engine.kv.snapshot_file import load_snapshot
from tests.engine.transfer_rigs import engine_of, rest_of
kind, *paths = sys.argv[1:]
engine = engine_of(kind)
rows = [engine.transfer.restore(load_snapshot(Path(path))) for path in paths]
print(json.dumps([rest_of(engine, row) for row in rows]))
"""


@pytest.fixture
def saved(tmp_path) -> Path:
    """A row's snapshot on disk."""
    engine = tiny_engine()
    path = tmp_path / "row"
    save_snapshot(engine.transfer.snapshot(begun(engine, request())), path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_continues_identically(kind, tmp_path):
    expected, paths = [], []
    for sampling in (GREEDY, SEEDED, MIROSTAT):
        engine = engine_of(kind)
        seq = begun(engine, request(written=12, sampling=sampling))
        answers = []
        for answer in steps_of(engine, seq):
            answers.append(answer)
            if len(answer) == 5:
                engine.submit([seq])
                paths.append(tmp_path / str(len(paths)))
                save_snapshot(engine.transfer.snapshot(seq), paths[-1])
                engine.collect(row_of(engine, seq).in_flight[0])
        expected.append(answers[-1])
    done = subprocess.run(
        [sys.executable, "-c", RESTORE_IN_ANOTHER_PROCESS, kind, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize("governor", [None, *GOVERNORS], ids=lambda one: type(one).__name__)
def test_every_field_comes_back_from_a_file(governor, tmp_path):
    engine = tiny_engine()
    whole = engine.transfer.snapshot(begun(engine, replace(FULL, ignore_eos=False)))
    snapshot = replace(whole, params=FULL, governor=governor, had_hooks=True)
    save_snapshot(snapshot, tmp_path / "row")
    back = load_snapshot(tmp_path / "row")
    assert replace(back, kv=snapshot.kv) == snapshot
    assert same_kv(back.kv, snapshot.kv)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_arrays_of_every_float_type_come_back_to_the_bit(dtype, tmp_path):
    model = tiny_engine().transfer.fingerprint
    values = mx.array([1e-8, -0.0, 3.3e38, float("nan"), float("inf")]).astype(dtype)
    kv = RowSnapshot(1, ((values.reshape(1, 1, 1, 5), values[:0].reshape(1, 1, 1, 0)), ()))
    save_snapshot(CachedPrefix(model, (9,), kv), tmp_path / "prefix")
    back = load_prefix(tmp_path / "prefix").kv
    assert [len(layer) for layer in back.layers] == [2, 0]
    assert same_kv(back, kv)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_with_nothing_read_is_a_snapshot_too(kind, tmp_path):
    engine = engine_of(kind)
    expected = rest_of(engine, begun(engine, request()))
    save_snapshot(engine.transfer.snapshot(engine.open(request())), tmp_path / "row")
    seq = engine.transfer.restore(load_snapshot(tmp_path / "row"))
    prefill(engine, seq)
    assert rest_of(engine, seq) == expected


def test_a_prefix_comes_back_from_its_own_file_and_from_a_row_s(saved, tmp_path):
    engine = tiny_engine()
    prefix = engine.transfer.export_prefix(begun(engine, request()), 16)
    save_snapshot(prefix, tmp_path / "prefix")
    back = load_prefix(tmp_path / "prefix")
    assert (back.ids, back.model) == (prefix.ids, prefix.model)
    assert same_kv(back.kv, prefix.kv)
    assert load_prefix(saved).ids == request().prompt_ids
    with pytest.raises(SnapshotCorrupt):
        load_snapshot(tmp_path / "prefix")


# -- wrong files


def test_every_altered_byte_is_noticed(saved):
    content = saved.read_bytes()
    assert load_snapshot(saved).kv.tokens == 30
    header = 8 + int.from_bytes(content[:8], "little")
    step = (len(content) - header) // 50
    # 1 makes another letter of a type's name or another digit of a shape.
    for at in [*range(0, header, 2), *range(header, len(content), step), len(content) - 1]:
        saved.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(SnapshotCorrupt):
            load_snapshot(saved)


def test_every_cut_file_is_noticed(saved):
    content = saved.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, 1000, len(content) // 2, len(content) - 1]:
        saved.write_bytes(content[:length])
        with pytest.raises(SnapshotCorrupt, match=str(saved)):
            load_snapshot(saved)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "not a safetensors file", id="empty"),
        pytest.param(b"GGUF" + bytes(200), "not a safetensors file", id="another format"),
        pytest.param(b"\x02" + bytes(7) + b"{}", "is no snapshot", id="no metadata"),
        pytest.param(b"\x02" + bytes(7) + b"[]", "malformed", id="header is a list"),
        pytest.param(b"\x02" + bytes(7) + b"\xff\xff", "malformed", id="header is no text"),
    ],
)
def test_a_foreign_file_is_refused(content, problem, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SnapshotCorrupt, match=problem):
        load_snapshot(path)


def test_a_model_s_weights_are_no_snapshot(tmp_path):
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"weight": mx.ones((2, 2))}, {"format": "mlx"})
    with pytest.raises(SnapshotCorrupt, match="is no snapshot"):
        load_snapshot(path)


def test_another_version_is_named(saved, monkeypatch):
    monkeypatch.setattr("engine.kv.snapshot_file.VERSION", 3)
    with pytest.raises(SnapshotCorrupt, match="of version 2; this program reads 3"):
        load_snapshot(saved)


def test_a_document_of_another_shape_is_malformed_even_with_a_right_checksum(saved, monkeypatch):
    original = load_snapshot(saved)
    real = snapshot_file._state

    def without_seed(snapshot: SequenceSnapshot) -> dict:
        state = real(snapshot)
        del state["row"]["params"]["sampling"]["seed"]
        return state

    def with_bad_value(snapshot: SequenceSnapshot) -> dict:
        state = real(snapshot)
        state["row"]["params"]["max_tokens"] = -5
        return state

    def with_missing_layer(snapshot: SequenceSnapshot) -> dict:
        state = real(snapshot)
        state["kv"]["layers"].append(["float32"])
        return state

    for broken in (without_seed, with_bad_value, with_missing_layer):
        monkeypatch.setattr(snapshot_file, "_state", broken)
        save_snapshot(original, saved)
        with pytest.raises(SnapshotCorrupt, match="malformed"):
            load_snapshot(saved)


def test_there_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_snapshot(tmp_path / "none")


# -- writing


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(saved, monkeypatch):
    engine = tiny_engine()
    snapshot = engine.transfer.snapshot(begun(engine, request(12)))
    before = saved.read_bytes()

    def fills_the_disk(path, arrays, metadata):
        Path(path).write_bytes(b"half")
        raise RuntimeError("no space left on device")

    monkeypatch.setattr(mx, "save_safetensors", fills_the_disk)
    with pytest.raises(SnapshotError, match="no space left"):
        save_snapshot(snapshot, saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_file_is_replaced_in_one_step(saved):
    engine = tiny_engine()
    save_snapshot(engine.transfer.snapshot(begun(engine, request(12))), saved)
    assert load_snapshot(saved).kv.tokens == 12
    assert list(saved.parent.iterdir()) == [saved]


def test_a_place_that_cannot_be_written_is_the_system_s_error(tmp_path):
    engine = tiny_engine()
    snapshot = engine.transfer.snapshot(begun(engine, request(12)))
    with pytest.raises((OSError, SnapshotError)):
        save_snapshot(snapshot, tmp_path / "missing" / "row")


def same_kv(ours: RowSnapshot, theirs: RowSnapshot) -> bool:
    """Whether two are equal to the bit, NaNs too."""
    pairs = [
        (a, b)
        for x, y in zip(ours.layers, theirs.layers, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    return (ours.tokens, ours.overshoot, ours.is_whole) == (
        theirs.tokens,
        theirs.overshoot,
        theirs.is_whole,
    ) and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(np.array(a.view(mx.uint8)), np.array(b.view(mx.uint8)))
        for a, b in pairs
    )


def test_a_cut_row_is_the_row_it_was(tmp_path):
    engine, other = tiny_engine(), tiny_engine()
    params = request(30, sampling=SEEDED)
    expected = rest_of(engine, begun(engine, params))
    seq = begun(engine, params)
    for _ in range(5):
        engine.step([seq])
    snapshot = engine.transfer.snapshot(seq)
    for tokens in (30, 31, 34, 35):
        cut = snapshot.cut(tokens)
        assert cut.written == tuple(expected[: tokens - 29])
        assert rest_of(other, other.transfer.restore(cut)) == expected
    reading = snapshot.cut(16)
    assert (reading.written, reading.kv.tokens) == ((), 16)
    with pytest.raises(SnapshotError, match="no first 36"):
        snapshot.cut(36)


def test_a_row_whose_sampler_learns_is_not_cut():
    engine = tiny_engine()
    seq = begun(engine, request(sampling=MIROSTAT))
    engine.step([seq])
    snapshot = engine.transfer.snapshot(seq)
    assert snapshot.cut(snapshot.kv.tokens) is snapshot
    with pytest.raises(SnapshotError, match="mirostat"):
        snapshot.cut(30)


def test_a_snapshot_that_breaks_the_length_law_cannot_be_made():
    engine = tiny_engine()
    snapshot = engine.transfer.snapshot(begun(engine, request()))
    for written in ((1, 2), (1, 2, 3)):
        with pytest.raises(SnapshotError, match="KV of 30 tokens for a row"):
            replace(snapshot, written=written)
    with pytest.raises(SnapshotError, match="KV of 30 tokens for 29 ids"):
        CachedPrefix(snapshot.model, snapshot.ids[:29], snapshot.kv)


def test_the_seed_that_was_drawn_goes_along():
    engine = tiny_engine()
    unseeded = request(sampling=SamplingParams(temperature=1.0))
    snapshot = engine.transfer.snapshot(begun(engine, unseeded))
    assert snapshot.params.sampling.seed is not None
