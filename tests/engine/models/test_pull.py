"""Tests of engine/models/pull.py against a small hub on loopback."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from engine.errors import PullFailed
from engine.models import partial_file
from engine.models.hub_name import HubName
from engine.models.progress import Progress
from engine.models.pull import PulledModel, pull
from tests.engine.models.fake_hub import COMMIT, FakeHub, running

NAME = HubName("owner", "name")
WEIGHTS = random.Random(0).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def online_without_waits(monkeypatch):
    # The hub's client reads the environment once, at its import.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(partial_file.time, "sleep", lambda _: None)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {
        "README.md": b"# long text nobody needs",
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"x" * 5000,
        "onnx/model.safetensors": b"y" * 5000,
    }
    with running(FakeHub(files)) as served:
        yield served


def pull_here(hub: FakeHub, cache: Path, name: HubName = NAME, progress=None) -> PulledModel:
    if progress is None:
        return pull(name, cache, endpoint=hub.endpoint)
    return pull(name, cache, endpoint=hub.endpoint, progress=progress)


def test_a_pull_brings_the_models_files_and_nothing_else(hub, tmp_path):
    pulled = pull_here(hub, tmp_path)
    assert pulled.folder == tmp_path / "models--owner--name" / "snapshots" / COMMIT
    assert {file.name for file in pulled.folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert (pulled.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_the_hub_clients_own_cache_then_answers_without_a_hub(hub, tmp_path):
    from huggingface_hub import try_to_load_from_cache

    pulled = pull_here(hub, tmp_path)
    found = try_to_load_from_cache("owner/name", "model.safetensors", cache_dir=tmp_path)
    assert found == str(pulled.folder / "model.safetensors")


def test_what_is_here_is_not_fetched_again(hub, tmp_path):
    pull_here(hub, tmp_path)
    hub.asked.clear()
    again = pull_here(hub, tmp_path)
    assert (again.fetched_bytes, hub.fetched("model.safetensors")) == (0, [])


def test_progress_counts_the_bytes_of_all_files_together(hub, tmp_path):
    seen: list[Progress] = []
    pulled = pull_here(hub, tmp_path, progress=seen.append)
    done = [report.done for report in seen]
    assert done == sorted(done)
    assert (done[-1], seen[-1].total) == (pulled.size_bytes, pulled.size_bytes)


def test_a_transfer_that_breaks_off_continues_where_it_stopped(hub, tmp_path):
    hub.breaks, hub.break_after_bytes = 2, 1_200_000
    pulled = pull_here(hub, tmp_path)
    assert (pulled.folder / "model.safetensors").read_bytes() == WEIGHTS
    first, *later = hub.fetched("model.safetensors")
    assert first is None
    assert len(later) == 2
    assert all(asked is not None and asked > "bytes=0-" for asked in later)


def test_a_pull_that_was_interrupted_continues_in_the_next_one(hub, tmp_path):
    def interrupt(report: Progress) -> None:
        if "safetensors" in report.stage and report.done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_here(hub, tmp_path, progress=interrupt)
    assert not (tmp_path / "models--owner--name" / "snapshots").exists()
    hub.asked.clear()
    pulled = pull_here(hub, tmp_path)
    (asked,) = hub.fetched("model.safetensors")
    assert asked is not None
    assert int(asked.removeprefix("bytes=").removesuffix("-")) >= 1_000_000
    assert (pulled.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_hub_that_ignores_ranges_sends_the_whole_file_anew(hub, tmp_path):
    hub.ignore_ranges, hub.breaks, hub.break_after_bytes = True, 1, 1_200_000
    pulled = pull_here(hub, tmp_path)
    assert (pulled.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_hub_that_never_gets_further_is_given_up_and_what_arrived_is_kept(hub, tmp_path):
    hub.breaks, hub.break_after_bytes = 1, 1_200_000
    blobs = tmp_path / "models--owner--name" / "blobs"

    def then_nothing(report: Progress) -> None:
        if "safetensors" in report.stage and report.done > 1_000_000:
            hub.breaks, hub.break_after_bytes = 100, 0

    with pytest.raises(PullFailed, match="resumes there"):
        pull_here(hub, tmp_path, progress=then_nothing)
    (partial,) = blobs.glob("*.mlxcel-partial")
    assert partial.stat().st_size >= 1_000_000


def test_a_damaged_file_is_dropped_and_never_becomes_the_model(hub, tmp_path):
    hub.damaged = True
    with pytest.raises(PullFailed, match="damaged"):
        pull_here(hub, tmp_path)
    assert not (tmp_path / "models--owner--name" / "snapshots").exists()
    hub.damaged = False
    assert (pull_here(hub, tmp_path).folder / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        pytest.param((401, "GatedRepo"), "accept its terms", id="gated"),
        pytest.param((403, "GatedRepo"), "accept its terms", id="gated, with a token"),
        pytest.param((404, "RepoNotFound"), "check the spelling", id="no such model"),
        pytest.param((401, ""), "HF_TOKEN", id="no token"),
        pytest.param((403, ""), "HF_TOKEN", id="a token without the right"),
        pytest.param((400, ""), "answered 400", id="anything else"),
    ],
)
def test_a_refusal_says_what_to_do(hub, tmp_path, refusal, says):
    hub.refuse = refusal
    with pytest.raises(PullFailed, match=says):
        pull_here(hub, tmp_path)


def test_offline_mode_says_so(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PullFailed, match="HF_HUB_OFFLINE"):
        pull_here(hub, tmp_path)
    assert hub.asked == []


def test_no_network_says_so(tmp_path):
    with pytest.raises(PullFailed, match=r"could not be reached.*HTTPS_PROXY"):
        pull(NAME, tmp_path, endpoint="http://127.0.0.1:9")


def test_a_disk_without_room_is_refused_before_the_first_byte(hub, tmp_path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(PullFailed, match="free; make room"):
        pull_here(hub, tmp_path)
    assert hub.fetched("config.json") == []


def test_a_cache_that_cannot_be_written_names_the_place(hub, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(PullFailed, match=str(blocked)):
        pull_here(hub, blocked)


def test_of_a_gguf_repository_the_named_file_alone_is_fetched(hub, tmp_path):
    hub.files = {"m-Q8_0.gguf": b"8" * 9000, "m-Q4_0.gguf": b"4" * 5000}
    pulled = pull_here(hub, tmp_path, HubName("owner", "name", "q8_0"))
    assert [file.name for file in pulled.folder.iterdir()] == ["m-Q8_0.gguf"]


def test_of_a_gguf_repository_the_best_file_is_chosen_and_said(hub, tmp_path):
    hub.files = {
        "m-Q8_0.gguf": b"8" * 9000,
        "m-Q4_0.gguf": b"4" * 5000,
        "m-Q2_K.gguf": b"2" * 3000,
        "mmproj-F16.gguf": b"v" * 3000,
    }
    pulled = pull_here(hub, tmp_path)
    assert [file.name for file in pulled.folder.iterdir()] == ["m-Q4_0.gguf"]
    assert "chose m-Q4_0.gguf" in pulled.notes[0]
    assert "mmproj" not in pulled.notes[0]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        pytest.param({"model.onnx": b"1"}, "no language model", id="no weights of a kind we read"),
        pytest.param({"model.safetensors": b"1"}, r"no config\.json", id="no config"),
    ],
)
def test_what_is_no_model_for_us_is_refused_before_it_is_fetched(hub, tmp_path, files, says):
    hub.files = files
    with pytest.raises(PullFailed, match=says):
        pull_here(hub, tmp_path)
