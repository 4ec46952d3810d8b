import pytest

from engine.models.stamp import STAMP_FILE, Stamp, fingerprint, read_stamp, write_stamp


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
