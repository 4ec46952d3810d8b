"""``mlxcel parity``: what it writes when variants agree and when not, and the exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from mlxcel_cli import app
from mlxcel_cli.exit_codes import ExitCode
from mlxcel_cli.parity import run as parity_run
from mlxcel_cli.parity.engine_variants import engine_tokens
from mlxcel_cli.parity.run import known_variants
from tests.engine.models.tiny import write_tiny


@pytest.fixture(autouse=True)
def _mlx_s_own_blas(monkeypatch) -> None:
    """The command runs in this process, whose products other tests compare to the bit."""
    monkeypatch.setenv("MLXCEL_BLAS", "off")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


def other_at(index: int, token: int):
    """A variant that writes the wrong token at one place."""

    def tokens(loaded, request):
        right = engine_tokens(loaded, request)
        return (*right[:index], token, *right[index + 1 :])

    return tokens


def parity(capsys, *arguments: str) -> tuple[int, list[str], str]:
    """Exit status, lines of stdout, stderr."""
    code = app.run(["parity", *arguments])
    shown = capsys.readouterr()
    return code, shown.out.splitlines(), shown.err


def test_variants_that_agree_are_exit_status_0(folder, capsys):
    code, lines, errors = parity(capsys, str(folder), "-n", "6", "--arms", "engine,batch,cached")
    assert (code, errors) == (0, "")
    assert len(lines) == 2 * 3 * 2 + 1
    assert all("identical, " in line for line in lines[:-1])
    assert lines[-1].startswith("12 identical, 0 near ties, 0 mismatches, 0 not run")


def test_a_broken_variant_is_exit_status_1_and_is_shown(folder, capsys, monkeypatch):
    variants = {**known_variants(), "broken": other_at(3, 65)}
    monkeypatch.setattr(parity_run, "known_variants", lambda: variants)
    asked = ("-p", "hello", "-n", "6", "--cases", "greedy", "--variants", "engine,broken")
    code, lines, _ = parity(capsys, str(folder), *asked)
    assert code == ExitCode.FAILED
    assert "engine / broken" in lines[0]
    assert "/ 65 'A', " in lines[0]
    assert lines[0].endswith(": MISMATCH")
    assert "1 mismatches" in lines[1]
    code, lines, _ = parity(capsys, str(folder), *asked, "--gap", "1000")
    assert code == ExitCode.OK
    assert lines[0].endswith(": near-tie")


def test_json_is_one_object_a_line(folder, capsys, monkeypatch):
    variants = {**known_variants(), "broken": other_at(3, 65)}
    monkeypatch.setattr(parity_run, "known_variants", lambda: variants)
    code, lines, _ = parity(
        capsys, str(folder), "-p", "hello", "-n", "6", "--cases", "greedy,seeded",
        "--variants", "engine,mlx-lm,broken", "--json", "--seed", "5",
    )  # fmt: skip
    first, *pairs, last = map(json.loads, lines)
    assert code == ExitCode.FAILED
    assert (first["type"], first["seed"], first["gap"]) == ("parity", 5, 0.001)
    assert [(one["case"], one["variants"][1], one["verdict"]) for one in pairs] == [
        ("greedy", "mlx-lm", "identical"),
        ("greedy", "broken", "mismatches"),
        ("seeded", "mlx-lm", "not_run"),
        ("seeded", "broken", "mismatches"),
    ]
    assert pairs[1]["divergence"]["index"] == 3
    assert pairs[1]["divergence"]["ids"][1] == 65
    assert pairs[1]["divergence"]["texts"][1] == "A"
    assert (last["type"], last["mismatches"], last["not_run"]) == ("summary", 2, 1)


def test_teacher_forced_compares_each_variant_by_itself(folder, capsys, monkeypatch):
    monkeypatch.setattr(
        parity_run,
        "known_variants",
        lambda: {"engine": engine_tokens, "broken": other_at(3, 65)},
    )
    asked = ("-p", "hello", "-n", "6", "--teacher-forced")
    code, lines, _ = parity(capsys, str(folder), *asked, "--variants", "engine")
    assert (code, len(lines)) == (0, 2)
    assert "6 tokens, 0 differ, 0 decided" in lines[0]
    code, lines, _ = parity(capsys, str(folder), *asked, "--gap", "0.001")
    assert code == ExitCode.FAILED
    assert "largest gap" in lines[1]


def test_prompts_come_from_a_file_one_a_line(folder, capsys, tmp_path):
    (tmp_path / "prompts").write_text("one\n\ntwo\nthree\n", encoding="utf-8")
    _, lines, _ = parity(
        capsys, str(folder), "--prompts", str(tmp_path / "prompts"), "--raw", "-n", "2",
        "--cases", "greedy", "--variants", "engine,sync",
    )  # fmt: skip
    assert [line.split()[:2] for line in lines[:-1]] == [["prompt", str(i)] for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--variants", "engine,nonsense"], "--variants: 'nonsense' is none of engine, generate"),
        (["--variants", "engine"], "--variants: name more"),
        (["--cases", "hot"], "--cases: 'hot' is none of greedy, penalised, seeded"),
        (["--gap", "-1"], "--gap: must be 0 or more"),
        (["--rows", "0"], "--rows: must be from 1 to 64"),
        (["-n", "0"], "--max-tokens: must be 1 or more"),
        (["--seed", "-2"], "--seed: must be -1 or"),
        (["-p", " "], "prompt: is empty"),
        (["-p", "x", "--prompts", "y"], "not both"),
        (["-m", "other"], "named twice"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_model_is_loaded(folder, capsys, arguments, said):
    code, lines, errors = parity(capsys, str(folder), *arguments)
    assert (code, lines) == (ExitCode.USAGE, [])
    assert said in errors


def test_a_deterministic_run_says_what_it_takes(folder):
    done = subprocess.run(
        [
            sys.executable, "-m", "mlxcel_cli", "parity", str(folder), "-n", "4", "-p", "hello",
            "--variants", "engine,batch,mlx-lm", "--gap", "0", "-v",
        ],
        env=os.environ | {"MLXCEL_DETERMINISTIC": "1", "MLXCEL_BLAS": ""},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "MLXCEL_DETERMINISTIC: " in done.stderr
    assert "transformers" not in done.stderr
    if mx.default_device() == mx.Device(mx.cpu):
        assert done.returncode == 0
        assert "BLAS: off" in done.stderr
        assert "5 identical, 0 near ties, 0 mismatches, 1 not run" in done.stdout
