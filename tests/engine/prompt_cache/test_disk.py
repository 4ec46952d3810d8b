"""What a folder keeps past a restart, under its bound, and what it refuses."""

import logging
import os

import mlx.core as mx
import pytest

from engine.kv.storage import RowSnapshot
from engine.prompt_cache.disk import DiskTier, path_digests
from engine.prompt_cache.key import CacheScope, CacheUse
from engine.prompt_cache.run_file import RunHead, RunKey, decode_run, encoded, read_content

IDS = tuple(range(100, 112))


def scope(name: str = "") -> CacheScope:
    return CacheScope.of(None, CacheUse(session=name))


def kv_of(ids: tuple[int, ...], start: int = 0) -> RowSnapshot:
    array = mx.array(ids[start:], mx.float32).reshape(1, 1, -1, 1)
    return RowSnapshot(len(ids) - start, ((array, array),))


def keep(tier: DiskTier, ids: tuple[int, ...], run: int = 4, name: str = "") -> None:
    for start in range(0, len(ids), run):
        part = ids[: start + run]
        tier.keep(scope(name), part, kv_of(part, start))


def read(tier: DiskTier, key: RunKey) -> RowSnapshot | None:
    content = tier.content(key)
    return None if content is None else tier.decoded(key, content)


@pytest.fixture
def reopened(tmp_path):
    """A tier that was filled by one before it."""
    tier = DiskTier(tmp_path, 10**6)
    keep(tier, IDS)
    tier.close()
    again = DiskTier(tmp_path, 10**6)
    yield again
    again.close()


def spans(tier: DiskTier, ids: tuple[int, ...], reach: int = 0, name: str = ""):
    return [(key.start, end) for key, end in tier.find(scope(name), ids, reach)]


def test_runs_are_found_in_order_after_a_restart(reopened):
    assert spans(reopened, (*IDS, 1, 2)) == [(0, 4), (4, 8), (8, 12)]
    for key, _ in reopened.find(scope(), IDS, 0):
        kv = read(reopened, key)
        assert kv.layers[0][0].reshape(-1).tolist() == list(IDS[key.start : key.stop])


def test_only_what_agrees_and_is_new_is_found(reopened):
    assert spans(reopened, (*IDS[:9], 0, 0, 0)) == [(0, 4), (4, 8), (8, 9)]
    assert spans(reopened, IDS, reach=5) == [(4, 8), (8, 12)]
    assert spans(reopened, IDS, reach=12) == []
    assert spans(reopened, (0, *IDS[1:])) == []
    assert spans(reopened, IDS, name="someone else") == []


def test_where_runs_cannot_be_cut_only_whole_ones_are_found(reopened):
    chain = reopened.find(scope(), IDS[:10], 0, cuts=False)
    assert [(key.start, end) for key, end in chain] == [(0, 4), (4, 8)]


def test_a_missing_run_ends_the_chain(reopened, tmp_path):
    (gone,) = tmp_path.glob("*-4-8.kvrun")
    gone.unlink()
    assert read(reopened, reopened.find(scope(), IDS, 0)[1][0]) is None
    assert spans(reopened, IDS) == [(0, 4)]


def test_a_damaged_file_is_reported_and_removed(reopened, tmp_path, caplog):
    (damaged,) = tmp_path.glob("*-0-4.kvrun")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        assert read(reopened, reopened.find(scope(), IDS, 0)[0][0]) is None
    assert "ignored" in caplog.text
    assert not damaged.exists()
    assert (reopened.faults, spans(reopened, IDS)) == (1, [])


def test_a_file_of_the_right_name_and_nothing_in_it_is_reported_and_removed(tmp_path, caplog):
    path = tmp_path / f"{'a' * 40}-0-4.kvrun"
    path.write_bytes(b"not ours")
    with caplog.at_level(logging.WARNING):
        DiskTier(tmp_path, 1000).close()
    assert "removed" in caplog.text
    assert not path.exists()


def test_foreign_files_are_reported_and_left(tmp_path, caplog):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.kvrun").mkdir()
    with caplog.at_level(logging.WARNING):
        tier = DiskTier(tmp_path, 1000)
    tier.clear()
    tier.close()
    assert "2 files" in caplog.text
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_a_killed_writer_left_half_written_is_removed(tmp_path):
    name = f".{'a' * 40}-0-4.kvrun"
    left = tmp_path / f"{name}.4194305.part"  # above any process id
    alive = tmp_path / f"{name}.{os.getppid()}.part"
    left.write_bytes(b"half")
    alive.write_bytes(b"half")
    DiskTier(tmp_path, 1000).close()
    assert not left.exists()
    assert alive.exists()


def test_the_folder_never_takes_more_than_its_bound(tmp_path):
    run = RunHead(RunKey("a" * 40, 0, 4), "b" * 40, (8, 1, 2, 3))
    size = encoded(run, kv_of(IDS[:4])).nbytes
    tier = DiskTier(tmp_path, 5 * size)
    for first in range(9):
        keep(tier, (first, 1, 2, 3))
    tier.close()
    files = list(tmp_path.iterdir())
    assert 3 <= len(files) <= 5
    assert sum(one.stat().st_size for one in files) == tier.nbytes <= 5 * size
    smaller = DiskTier(tmp_path, 2 * size)
    smaller.close()
    assert len(list(tmp_path.iterdir())) <= 2


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    tier = DiskTier(tmp_path, 10**6)
    for first in range(3):
        keep(tier, (first, 1, 2, 3))
    tier.close()
    for first in range(3):
        stop = path_digests(scope(), (first, 1, 2, 3), {4})[4]
        os.utime(tmp_path / f"{stop}-0-4.kvrun", ns=(first, first))
    tier = DiskTier(tmp_path, 10**6)
    assert read(tier, tier.find(scope(), (0, 1, 2, 3), 0)[0][0]) is not None
    tier.close()
    tier = DiskTier(tmp_path, tier.nbytes - 1)
    tier.close()
    assert [len(spans(tier, (first, 1, 2, 3))) for first in range(3)] == [1, 0, 1]


def test_a_run_that_is_there_is_not_written_again(reopened, tmp_path):
    before = {one: one.stat().st_mtime_ns for one in tmp_path.iterdir()}
    keep(reopened, IDS)
    reopened.close()
    assert {one: one.stat().st_mtime_ns for one in tmp_path.iterdir()} == before


def test_clearing_removes_every_file(reopened, tmp_path):
    reopened.clear()
    assert list(tmp_path.iterdir()) == []
    assert (reopened.nbytes, reopened.entries) == (0, 0)


def test_a_folder_that_cannot_be_written_costs_only_the_files(tmp_path, caplog):
    tier = DiskTier(tmp_path / "there", 10**6)
    (tmp_path / "there").rmdir()
    with caplog.at_level(logging.WARNING):
        keep(tier, IDS[:4])
        tier.close()
    assert tier.faults == 1
    assert "could not be written" in caplog.text


def test_a_file_in_the_way_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        DiskTier(tmp_path / "file", 1000)


def test_what_is_written_can_be_read_by_its_key_alone(reopened, tmp_path):
    key, _ = reopened.find(scope(), IDS, 0)[0]
    path = tmp_path / f"{key.path}-0-4.kvrun"
    assert decode_run(path, read_content(path), key).tokens == 4
