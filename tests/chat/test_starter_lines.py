"""Line mode with the real starter model: pipes and a terminal, as a program."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

pytestmark = [pytest.mark.starter, pytest.mark.slow]

ROOT = str(Path(__file__).parents[2])
PROGRAM = ("-m", "mlxcel_cli", "chat", "--temperature", "0")


@pytest.fixture
def environ(tmp_path, starter_folder):
    home = tmp_path / "home"
    home.mkdir()
    # What is compiled once for a machine need not be compiled for each test.
    blas = starter_folder.parent.parent / "blas"
    if blas.exists():
        (home / "blas").symlink_to(blas)
    named = {
        "MLXCEL_HOME": str(home),
        "PYTHONPATH": ROOT,
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    return kept | named


@pytest.fixture
def command(starter_folder):
    return [sys.executable, *PROGRAM, str(starter_folder)]


@pytest.fixture
def pipe(environ, command):
    def run(stdin: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            input=stdin,
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.fixture
def typed(environ, command):
    children = []

    def start(*arguments: str) -> pexpect.spawn:
        program, *rest = [*command, "--plain", *arguments]
        child = pexpect.spawn(program, rest, env=environ, encoding="utf-8", timeout=80)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


def begins_a_story(child) -> None:
    """Ask for a long answer and wait until it is being written."""
    child.expect(">>>")
    child.send("Tell me a very long story about a whale.\r")
    # The line editor may write what was typed more than once.
    child.expect("reading the prompt: 0 of")
    child.expect("whale.*whale")


def ends(child) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_a_file_is_answered_line_by_line_and_the_program_ends_with_it(pipe):
    ran = pipe('Name a fish.\n\n/nonsense\n"""Name\na bird."""\n/stats\n"""open', "-n", "6")
    assert ran.returncode == 2
    assert "\x1b" not in ran.stdout + ran.stderr
    assert len(ran.stdout.strip().splitlines()) >= 3
    assert "stdin is no terminal" in ran.stderr
    assert "Nothing was sent" in ran.stderr
    # The second turn reads its own tokens and at most one again.
    rows = [line.split() for line in ran.stderr.splitlines() if re.match(r" +[12] +\d+ +\d+", line)]
    assert [row[0] for row in rows] == ["1", "2"]
    assert 0 <= int(rows[1][3]) - int(rows[1][2]) <= 1


def test_a_reader_that_goes_away_ends_it_quietly(environ, command):
    program = subprocess.Popen(
        [*command, "-n", "40"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        text=True,
    )
    program.stdout.close()
    _, errors = program.communicate("Tell me about fish.\nAnd about birds.\n", timeout=100)
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_ctrl_c_while_it_loads_leaves_a_chat_that_can_load(typed, starter_folder):
    child = typed("-n", "4")
    child.expect("loading")
    child.sendintr()
    child.expect("loading is stopped")
    child.expect(">>>")
    child.send("hello\r")
    child.expect("no model is loaded")
    child.expect(">>> hello")
    child.sendintr()
    child.expect(">>>")
    child.send(f"/model {starter_folder}\r")
    child.expect("tokens of context")
    child.expect(">>>")
    child.send("hello\r")
    child.expect("cut at 4 tokens — /continue to continue")
    child.send("\x04")
    assert ends(child) == 0


def test_ctrl_c_stops_the_answer_and_a_second_one_the_program(typed):
    child = typed("--no-save")
    begins_a_story(child)
    child.sendintr()
    child.expect(r"stopped after \d+ tokens")
    child.expect(">>>")
    child.send('"""half a\r')
    child.expect_exact("...")
    child.sendintr()
    child.expect("Ctrl-D leaves")
    child.expect(">>>")
    child.send("/bye\r")
    assert ends(child) == 0


def test_ctrl_c_before_the_first_token_keeps_the_question(typed, tmp_path):
    (tmp_path / "sea.txt").write_text("the sea is wide and the wind is cold\n" * 700)
    child = typed("--no-save")
    child.expect(">>>")
    child.send(f"read @{tmp_path / 'sea.txt'}\r")
    child.expect("reading the prompt: 0 of")
    child.sendintr()
    child.expect("stopped before the first token")
    child.expect(">>>")
    child.send("\x04")
    assert ends(child) == 0


def test_ctrl_c_right_behind_a_line_stops_its_answer(typed):
    child = typed("--no-save")
    child.delaybeforesend = None
    child.expect(">>>")
    for delay_s in (0, 0.01, 0.03, 0.05, 0.1):
        child.send("Tell me a very long story about a whale.\r")
        time.sleep(delay_s)
        child.send("\x03")
        child.expect(r"stopped (before the first token|after \d+ tokens)")
        child.expect(">>>")
    child.send("\x04")
    assert ends(child) == 0
    assert "Traceback" not in child.before


@pytest.mark.parametrize("moment", ["loading", "answering"])
def test_sigterm_ends_it_with_its_status(typed, moment):
    child = typed("--no-save")
    if moment == "loading":
        child.expect("loading")
    else:
        begins_a_story(child)
    child.kill(signal.SIGTERM)
    assert ends(child) == 128 + signal.SIGTERM


def test_a_killed_chat_is_continued(typed, pipe):
    child = typed()
    begins_a_story(child)
    child.expect("(.|\n){400}")
    child.kill(signal.SIGKILL)
    child.expect(pexpect.EOF)
    ran = pipe("/continue\n/stats\n", "--continue", "-n", "5")
    assert ran.returncode == 0
    assert ran.stdout.strip()


def test_what_a_terminal_shows_holds_no_marks_of_readline(typed):
    child = typed("--no-save", "-n", "4")
    child.expect(">>>")
    child.send("hi\r")
    child.expect("cut at 4 tokens")
    child.send("\x04")
    child.expect(pexpect.EOF)
    assert "\x01" not in child.before
    assert "\x02" not in child.before
