import fcntl
import threading

import pytest

from engine.models.built_folder import (
    STAMP_FILE,
    Stamp,
    create_folder,
    fingerprint,
    read_stamp,
    write_stamp,
)


def build(folder):
    (folder / "part").write_text("built")


def is_complete(folder):
    return (folder / "part").exists()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_under_its_name_when_it_is_built(tmp_path):
    target = tmp_path / "deep" / "model"
    seen = []

    def watched(folder):
        build(folder)
        seen.append(target.exists())

    assert create_folder(target, watched, is_current=is_complete) is True
    assert seen == [False]
    assert names(target) == ["part"]
    assert names(target.parent) == [".model.lock", "model"]


def test_a_current_folder_is_left_alone(tmp_path):
    target = tmp_path / "model"
    create_folder(target, build, is_current=is_complete)

    def never(folder):
        pytest.fail("a current folder was built again")

    assert create_folder(target, never, is_current=is_complete) is False


def test_a_stale_folder_is_replaced_whole(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "of-an-older-version").touch()
    assert create_folder(target, build, is_current=is_complete) is True
    assert names(target) == ["part"]
    assert names(tmp_path) == [".model.lock", "model"]


def test_a_failed_build_leaves_what_was_there(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").touch()

    def broken(folder):
        build(folder)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        create_folder(target, broken, is_current=is_complete)
    assert names(target) == ["old"]
    assert names(tmp_path) == [".model.lock", "model"]


def test_what_a_killed_process_left_is_removed_and_others_work_is_not(tmp_path):
    for name in (".model.making-1", ".other.making-1", ".model-2.making-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    create_folder(tmp_path / "model", build, is_current=is_complete)
    expected = [".model-2.making-1", ".model.lock", ".other.making-1", "model"]
    assert names(tmp_path) == expected


def test_who_comes_second_waits_says_so_and_finds_the_work_done(tmp_path):
    target = tmp_path / "model"
    waits, reports = threading.Event(), []

    def report(progress):
        reports.append(progress.stage)
        waits.set()

    with (tmp_path / ".model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = []
        second = threading.Thread(
            target=lambda: results.append(
                create_folder(target, pytest.fail, is_current=is_complete, progress=report)
            )
        )
        second.start()
        assert waits.wait(10)
        target.mkdir()
        build(target)
    second.join(10)
    assert results == [False]
    assert reports[0] == "waiting for another process to make model"


def test_a_stamp_is_read_as_it_was_written(tmp_path):
    stamp = Stamp("source", ("a note", "another"))
    write_stamp(tmp_path, stamp)
    assert read_stamp(tmp_path) == stamp


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="no stamp"),
        pytest.param("{", id="half a stamp"),
        pytest.param("[]", id="another kind of value"),
        pytest.param('{"format": 0, "source": "s", "notes": []}', id="an older format"),
        pytest.param('{"format": 1, "source": 1, "notes": []}', id="a source of no text"),
        pytest.param('{"format": 1, "source": "s"}', id="no notes"),
    ],
)
def test_anything_else_is_no_stamp(tmp_path, content):
    if content is not None:
        (tmp_path / STAMP_FILE).write_text(content)
    assert read_stamp(tmp_path) is None


@pytest.mark.parametrize(
    "change", [0, 1_000_000, 3_000_000 - 1], ids=["first byte", "first MiB", "last byte"]
)
def test_files_that_differ_at_either_end_have_different_fingerprints(tmp_path, change):
    data = bytearray(3_000_000)
    (tmp_path / "a").write_bytes(data)
    data[change] = 1
    (tmp_path / "b").write_bytes(data)
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


def test_a_copy_has_the_same_fingerprint_and_a_longer_file_another(tmp_path):
    for name, size in (("a", 10), ("b", 10), ("c", 11)):
        (tmp_path / name).write_bytes(bytes(size))
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "c")
