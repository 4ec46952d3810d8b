"""``mlxcel generate --prompt-lookup`` with the real engine on a tiny model, from flag to text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models.tiny import write_tiny

ROOT = Path(__file__).parents[2]
PROMPT = "one two one two one two one two"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture
def generate(model, tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"PYTHONPATH": str(ROOT), "MLXCEL_HOME": str(tmp_path)}
        fixed = ["--raw", "--ignore-eos", "-n", "40", "-m", str(model), "-p", PROMPT]
        return subprocess.run(
            [sys.executable, "-m", "mlxcel_cli", "generate", *fixed, *arguments],
            env=environ, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


def costs(home: Path) -> list[Path]:
    return sorted(home.glob("verify-widths/*.json"))


@pytest.mark.parametrize("sampler", [(), ("--temperature", "0.8", "--seed", "3")], ids=str)
def test_the_text_is_the_same_and_the_rounds_are_reported(generate, sampler):
    plain = generate(*sampler)
    policy = ("--prompt-lookup-policy", "fixed")
    drafted = generate("--prompt-lookup", "--stats", *policy, *sampler)
    assert (plain.returncode, drafted.returncode) == (0, 0), drafted.stderr
    assert drafted.stdout == plain.stdout
    assert drafted.stderr.splitlines()[-1].startswith("[Prompt lookup] rounds=")


def test_a_lookup_file_is_drafted_from_and_not_read_by_the_model(generate, tmp_path):
    plain = json.loads(generate("--json").stdout.splitlines()[-1])
    file = tmp_path / "answer.txt"
    file.write_text(plain["text"], encoding="utf-8")
    flags = ("--prompt-lookup", "--prompt-lookup-policy", "fixed", "--prompt-lookup-ngram-min", "1")
    done = json.loads(
        generate("--json", *flags, "--lookup-file", str(file)).stdout.splitlines()[-1]
    )
    assert done["text"] == plain["text"]
    assert done["usage"] == plain["usage"], "the prompt is as long as before"
    assert done["timings"]["draft_kind"] == "prompt-lookup"
    assert done["timings"]["draft_rounds"] > 0
    assert "draft_kind" not in plain["timings"]


def test_widths_are_measured_by_the_first_run_and_kept(generate, tmp_path):
    first = generate("--prompt-lookup")
    (kept,) = costs(tmp_path)
    written = kept.stat().st_mtime_ns
    assert len(json.loads(kept.read_text())["costs"]) == 8
    assert generate("--prompt-lookup").stdout == first.stdout
    assert (costs(tmp_path), kept.stat().st_mtime_ns) == ([kept], written)


def test_kept_widths_that_are_damaged_are_measured_again(generate, tmp_path):
    first = generate("--prompt-lookup")
    (kept,) = costs(tmp_path)
    kept.write_text("{")
    assert generate("--prompt-lookup").stdout == first.stdout
    assert json.loads(kept.read_text())["costs"]


def test_policies_that_do_not_ask_for_costs_measure_none(generate, tmp_path):
    assert generate("--prompt-lookup", "--prompt-lookup-policy", "graded").returncode == 0
    assert costs(tmp_path) == []


def test_a_sampler_that_cannot_take_part_is_refused_by_name(generate):
    done = generate("--prompt-lookup", "--mirostat", "2")
    assert (done.returncode, done.stdout.strip()) == (2, "")
    assert done.stderr.startswith("mlxcel: --prompt-lookup: is not possible here: each mirostat")
