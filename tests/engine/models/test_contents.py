"""Any byte of a model's files that changes gives another digest, and large files are read once."""

import hashlib
import os
from pathlib import Path

import pytest

from engine.models import contents
from engine.models.contents import DIGESTS, LARGE_BYTES, contents_digest, file_states


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"rope_theta": 10000.0}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(LARGE_BYTES + 5))
    (folder / "README.md").write_text("about")
    return folder


def digest(folder: Path, home: Path | None = None) -> str:
    return contents_digest(folder, file_states(folder), home or folder.parent / "home")


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("config.json", 5),
        ("tokenizer.json", 0),
        *[("model.safetensors", at) for at in (0, 777, -1)],
    ],
)
@pytest.mark.parametrize("keeps_mtime", [False, True])
def test_any_byte_counts(folder: Path, name: str, at: int, keeps_mtime: bool):
    before = digest(folder)
    file = folder / name
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    if keeps_mtime:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digest(folder) != before


def test_a_file_more_counts_and_so_does_its_name(folder: Path):
    before = digest(folder)
    (folder / "generation_config.json").write_text("{}")
    more = digest(folder)
    (folder / "generation_config.json").rename(folder / "adapter.json")
    assert len({before, more, digest(folder)}) == 3


def test_documents_and_hidden_files_do_not_count(folder: Path):
    before = digest(folder)
    (folder / "README.md").write_text("more about")
    (folder / ".lock").write_text("1")
    assert digest(folder) == before


@pytest.mark.parametrize("library", ["mlxcel", "mlx", "mlx-lm"])
def test_another_version_of_a_library_counts(folder: Path, library: str, monkeypatch):
    before = digest(folder)
    own = contents._version
    monkeypatch.setattr(contents, "_version", lambda name: own(name) + "+" * (name == library))
    assert digest(folder) != before


def test_a_copy_in_another_place_is_the_same(folder: Path):
    copy = folder.parent / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert digest(copy) == digest(folder)


def test_a_large_file_is_read_once(folder: Path, monkeypatch):
    before = digest(folder)
    read: list[str] = []
    whole = hashlib.file_digest

    def noted(file, name):
        read.append(Path(file.name).name)
        return whole(file, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    assert digest(folder) == before
    assert sorted(read) == ["config.json", "tokenizer.json"]
    kept = folder.parent / "home" / DIGESTS
    assert kept.stat().st_mode & 0o077 == 0
    kept.write_text("[1")
    assert digest(folder) == before


def test_files_that_changed_since_they_were_loaded_are_nobodys(folder: Path):
    states = file_states(folder)
    (folder / "config.json").write_text('{"rope_theta": 20000.0}')
    home = folder.parent / "home"
    first = contents_digest(folder, states, home)
    assert first != contents_digest(folder, states, home)
    assert digest(folder) not in {first}


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path):
    assert file_states(tmp_path / "none") == ()
    assert digest(tmp_path / "none") == digest(tmp_path / "other")
