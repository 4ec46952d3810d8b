"""A file of KV is read as it was written, or not at all."""

import os
from pathlib import Path

import mlx.core as mx
import pytest

from engine.errors import SnapshotCorrupt
from engine.kv.storage import RowSnapshot
from engine.prompt_cache.run_file import (
    RunHead,
    RunKey,
    decode_run,
    encoded,
    read_content,
    read_head,
    write_run,
)

KEY = RunKey("ab" * 20, 3, 7)
RUN = RunHead(KEY, "ef" * 20, (4, 5, 6, 7))


def kv(dtype: mx.Dtype = mx.float32, *, is_whole: bool = False) -> RowSnapshot:
    layer = tuple(mx.random.normal((1, 2, 4, 8)).astype(dtype) for _ in "kv")
    return RowSnapshot(4, (layer, (), layer), overshoot=2 * is_whole, is_whole=is_whole)


def read(path: Path, key: RunKey) -> RowSnapshot:
    return decode_run(path, read_content(path), key)


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "run"
    write_run(encoded(RUN, kv()), written)
    return written


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_read_is_what_was_written_bit_for_bit(dtype, is_whole, tmp_path):
    written = kv(dtype, is_whole=is_whole)
    write_run(encoded(RUN, written), tmp_path / "run")
    found = read(tmp_path / "run", KEY)
    assert (found.tokens, found.overshoot, found.is_whole) == (4, written.overshoot, is_whole)
    for ours, theirs in zip(found.layers, written.layers, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            assert bool(mx.array_equal(a, b))


def test_the_length_of_a_file_is_known_before_it_is_written(tmp_path):
    record = encoded(RUN, kv())
    write_run(record, tmp_path / "run")
    assert (tmp_path / "run").stat().st_size == record.nbytes


@pytest.mark.parametrize("at", [0, 9, 40, 200, -40, -1])
def test_one_changed_byte_anywhere_is_found(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotCorrupt):
        read(path, KEY)


@pytest.mark.parametrize("length", [0, 5, 12, 60, 400, -1])
def test_a_file_cut_off_anywhere_is_refused(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(SnapshotCorrupt):
        read(path, KEY)


@pytest.mark.parametrize(
    "other", [RunKey("cd" * 20, 3, 7), RunKey(KEY.path, 2, 7), RunKey(KEY.path, 3, 8)], ids=str
)
def test_a_file_under_another_s_name_is_refused(path, other):
    with pytest.raises(SnapshotCorrupt):
        read(path, other)


def test_a_write_that_fails_leaves_the_old_file_and_no_part(path, monkeypatch):
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_run(encoded(RUN, kv()), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_its_head_reports_what_a_file_is_of(path):
    assert read_head(path) == RUN


@pytest.mark.parametrize("length", [0, 5, 12, 60])
def test_a_head_that_is_not_all_there_is_refused(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(SnapshotCorrupt):
        read_head(path)
