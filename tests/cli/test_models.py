"""Tests of ``mlxcel models``: the program as a person or a script sees it."""

import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pexpect
import pytest

from engine.models.catalog import ModelPlaces
from mlxcel_cli.exit_codes import ExitCode
from tests.engine.models.fake_hub import COMMIT, FakeHub, running
from tests.engine.models.model_folders import add_hub_model
from tests.engine.models.tiny import write_tiny


@pytest.fixture
def places() -> ModelPlaces:
    """Those of the private home that every test gets."""
    return ModelPlaces(
        home=Path(os.environ["MLXCEL_HOME"]), hub_cache=Path(os.environ["HF_HOME"]) / "hub"
    )


def models(
    *arguments: str, largest_file_bytes: int | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if largest_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))

    return subprocess.run(
        [sys.executable, "-m", "mlxcel_cli", "models", *arguments],
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=limit,
    )


def test_an_empty_machine_is_an_error_that_says_what_to_type():
    done = models("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "mlxcel models pull" in done.stderr


def test_the_list_is_a_table_for_people_and_json_lines_for_programs(places):
    add_hub_model(places, "owner/name", quantization={"bits": 4, "group_size": 64})
    broken = add_hub_model(places, "owner/broken")
    (broken / "model.safetensors").unlink()
    table = models("list").stdout
    assert [line.split()[0] for line in table.splitlines()] == [
        "NAME",
        "owner/broken",
        "owner/name",
    ]
    assert "broken: no model*.safetensors" in table
    lines = [json.loads(line) for line in models("list", "--json").stdout.splitlines()]
    assert [(line["name"], line["quantization"]) for line in lines] == [
        ("owner/broken", None),
        ("owner/name", "4-bit group 64"),
    ]


def test_a_folder_s_name_cannot_command_the_terminal(places):
    write_tiny(places.models / "bad\n\x1b[31mname")
    listed = models("list").stdout
    assert "\x1b" not in listed
    assert len(listed.splitlines()) == 2


def test_a_model_is_shown_without_loading_it(tmp_path):
    write_tiny(tmp_path / "tiny")
    shown = json.loads(models("show", str(tmp_path / "tiny"), "--json").stdout)
    assert (shown["family"], shown["layers"], shown["has_template"]) == ("llama", 2, True)
    assert "context tokens  512" in models("show", str(tmp_path / "tiny")).stdout


def test_a_missing_model_says_what_to_type():
    done = models("show", "owner/name")
    assert done.returncode == ExitCode.MODEL_NOT_FOUND
    assert "mlxcel models pull owner/name" in done.stderr


def test_a_pulled_model_is_listed_shown_and_removed(places):
    config = {"model_type": "llama"}
    hub = FakeHub({"config.json": json.dumps(config).encode(), "model.safetensors": b"w" * 9000})
    with running(hub):
        done = models("pull", "owner/name", HF_ENDPOINT=hub.endpoint, HF_HUB_OFFLINE="0")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stdout == f"{places.hub_cache}/models--owner--name/snapshots/{COMMIT}\n"
    assert "owner/name" in models("list").stdout
    assert models("rm", "owner/name", "--yes").returncode == 0
    assert models("list").stdout == ""


def test_offline_nothing_is_pulled():
    done = models("pull", "owner/name", HF_HUB_OFFLINE="1")
    assert done.returncode == ExitCode.PULL_FAILED
    assert "HF_HUB_OFFLINE" in done.stderr


def test_a_bare_name_is_no_hub_id_and_the_likely_one_is_named():
    done = models("pull", "Qwen3-0.6B-4bit")
    assert done.returncode == ExitCode.USAGE
    assert "mlx-community/Qwen3-0.6B-4bit" in done.stderr


def test_removing_where_nobody_can_be_asked_needs_yes(places):
    snapshot = add_hub_model(places, "owner/name")
    done = models("rm", "owner/name")
    assert done.returncode == ExitCode.USAGE
    assert "--yes" in done.stderr
    assert snapshot.exists()


@pytest.mark.parametrize(("answer", "stays"), [("n", True), ("", True), ("y", False)])
def test_removing_asks_on_a_terminal(places, answer, stays):
    snapshot = add_hub_model(places, "owner/name")
    child = pexpect.spawn(
        sys.executable,
        ["-m", "mlxcel_cli", "models", "rm", "owner/name"],
        env=os.environ | {"TERM": "dumb"},
        timeout=30,
        encoding="utf-8",
    )
    child.expect(r"remove owner/name .*\[y/N\]")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert snapshot.exists() is stays


def test_a_users_own_folder_is_never_removed(tmp_path):
    folder = write_tiny(tmp_path / "mine")
    done = models("rm", str(folder), "--yes")
    assert done.returncode == ExitCode.USAGE
    assert (folder / "config.json").exists()


def test_an_interrupted_pull_exits_130_and_the_next_one_continues(places):
    hub = FakeHub(
        {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(9_000_000)}
    )
    hub.breaks, hub.break_after_bytes, hub.hold = 1, 4_000_000, threading.Event()
    blobs = places.hub_cache / "models--owner--name" / "blobs"
    with running(hub):
        environ = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        child = pexpect.spawn(
            sys.executable,
            ["-m", "mlxcel_cli", "models", "pull", "owner/name"],
            env=os.environ | environ | {"TERM": "xterm"},
            timeout=30,
            encoding="utf-8",
        )
        child.expect(r"downloading model.safetensors: [1-9]")
        child.sendintr()
        child.expect(pexpect.EOF)
        child.close()
        hub.hold.set()
        assert child.exitstatus == ExitCode.INTERRUPTED
        (partial,) = blobs.glob("*.mlxcel-partial")
        arrived = partial.stat().st_size
        hub.asked.clear()
        assert models("pull", "owner/name", **environ).returncode == 0
    assert arrived > 0
    assert hub.fetched("model.safetensors") == [f"bytes={arrived}-"]


def test_a_disk_that_fills_up_says_so_and_what_arrived_is_kept(places):
    config = b'{"model_type": "llama"}'
    hub = FakeHub({"config.json": config, "model.safetensors": bytes(9_000_000)})
    blobs = places.hub_cache / "models--owner--name" / "blobs"
    with running(hub):
        environ = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        done = models("pull", "owner/name", largest_file_bytes=4_000_000, **environ)
        assert done.returncode == ExitCode.PULL_FAILED
        assert "File too large" in done.stderr
        assert "mlxcel models pull owner/name resumes there" in done.stderr
        (partial,) = blobs.glob("*.mlxcel-partial")
        assert partial.stat().st_size == 4_000_000
        assert models("pull", "owner/name", **environ).returncode == 0
    assert hub.fetched("model.safetensors")[1:] == ["bytes=4000000-"]
