"""``mlxcel generate`` with the real starter model, as a program and in a terminal."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

pytestmark = [pytest.mark.starter, pytest.mark.slow]

LONG_PROMPT = "The sea is wide and the wind is cold. " * 220


@pytest.fixture
def environ(starter_folder: Path) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    home = starter_folder.parent.parent
    return os.environ | {"MLXCEL_HOME": str(home), "PYTHONPATH": root, "TERM": "xterm"}


@pytest.fixture
def run(environ):
    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "mlxcel_cli", "generate", *arguments],
            env=environ,
            input=stdin,
            capture_output=True,
            timeout=100,
            check=False,
        )

    return run


def test_an_answer_is_the_same_each_time_and_in_json(run):
    plain = run("-n", "8", "Write one short sentence about the sea.")
    told = run("-n", "8", "--json", "-", stdin=b"Write one short sentence about the sea.\n")
    assert (plain.returncode, told.returncode) == (0, 0)
    assert b"\x1b" not in plain.stdout + plain.stderr
    *deltas, done = [json.loads(line) for line in told.stdout.decode().splitlines()]
    assert "".join(delta["text"] for delta in deltas) == done["text"]
    assert plain.stdout.decode() == done["text"] + "\n"
    assert done["usage"]["completion_tokens"] == 8
    assert done["finish"] == "length"


def test_a_seed_makes_a_warm_answer_repeatable(run):
    words = ("-n", "12", "-t", "1.5", "--seed", "11", "Tell me a story.")
    assert run(*words).stdout == run(*words).stdout


def test_an_answer_continues_from_its_given_start(run):
    done = run("-n", "4", "--prefill", "The sea is", "Describe the sea.")
    assert done.stdout.startswith(b"The sea is ")


def test_a_stop_text_ends_the_answer_and_is_not_shown(run):
    done = run("-n", "40", "--raw", "--stop", "5", "--json", "1 2 3 4 5 1 2 3 4 5 1 2 3")
    end = json.loads(done.stdout.decode().splitlines()[-1])
    assert end["finish"] == "stop_sequence"
    assert "5" not in end["text"]


def test_no_tokens_are_asked_for_and_none_are_written(run):
    done = run("-n", "0", "--json", "hi")
    end = json.loads(done.stdout)
    assert (done.returncode, end["text"], end["finish"]) == (0, "", "length")


def test_a_bias_can_forbid_a_word(run):
    usual = run("-n", "1", "--raw", "The capital of France is")
    word = usual.stdout.decode().removesuffix("\n")
    other = run("-n", "1", "--raw", "--logit-bias", f'"{word}"=-inf', "The capital of France is")
    assert other.returncode == 0
    assert other.stdout != usual.stdout


def test_a_prompt_longer_than_the_context_is_refused_with_both_figures(run):
    done = run("-c", "16", LONG_PROMPT)
    assert done.returncode == 7
    assert b"16" in done.stderr


def test_a_bias_beyond_the_vocabulary_is_refused_before_a_forward(run):
    done = run("--logit-bias", "9999999=1", "hi")
    assert done.returncode == 2
    assert b"9999999" in done.stderr


def test_a_process_ends_cleanly_every_time(run):
    codes = [run("-n", "2", "-t", "1", "hi").returncode for _ in range(8)]
    assert codes == [0] * 8


@pytest.mark.parametrize(
    "wait_for",
    [
        pytest.param("reading the prompt", id="while the prompt is read"),
        pytest.param(r"\r +\r\w", id="while the answer is written"),
    ],
)
def test_ctrl_c_is_noticed_and_exits_130_without_an_abort(environ, wait_for):
    child = pexpect.spawn(
        sys.executable,
        ["-m", "mlxcel_cli", "generate", "--ignore-eos", LONG_PROMPT[:8000]],
        env=environ,
        timeout=100,
        encoding="utf-8",
    )
    child.expect(wait_for)
    child.kill(signal.SIGINT)
    child.expect_exact("mlxcel: interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, child.signalstatus) == (130, None)
