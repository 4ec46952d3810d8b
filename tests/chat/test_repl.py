"""Line mode: pipes, terminals, Ctrl-C, errors; nothing but the answers on stdout."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

FAKE = Path(__file__).parents[1] / "tui" / "fake_chat.py"
ROOT = FAKE.parents[2]


@pytest.fixture
def environ(tmp_path):
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    return kept | {
        "MLXCEL_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }


@pytest.fixture
def pipe(environ):
    def run(stdin: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(FAKE), "chat", *arguments],
            input=stdin,
            env=environ | extra,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run


@pytest.fixture
def typed(environ):
    children = []

    def start(*arguments: str, waits_for=">>>", **extra: str) -> pexpect.spawn:
        child = pexpect.spawn(
            sys.executable,
            [str(FAKE), "chat", "--plain", "--no-save", *arguments],
            env=environ | extra,
            encoding="utf-8",
            timeout=60,
        )
        children.append(child)
        child.expect_exact(waits_for)
        return child

    yield start
    for child in children:
        child.close(force=True)


def test_each_line_of_a_pipe_is_a_message_and_it_ends_with_its_input(pipe):
    ran = pipe('one\n\n"""two\nlines"""\n"""open')
    assert ran.stdout.splitlines() == [
        "You said: one (3 characters) ",
        "You said: two",
        "lines (9 characters) ",
        "You said: open (4 characters) ",
    ]
    assert "stdin is no terminal" in ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr
    assert ">>>" not in ran.stdout
    assert ran.returncode == 0


def test_an_empty_pipe_ends_at_once(pipe):
    ran = pipe("")
    assert (ran.stdout, ran.returncode) == ("", 0)


def test_an_error_ends_the_turn_not_the_chat_and_its_status_is_kept(pipe):
    ran = pipe("fail\nhello\n")
    assert ran.stdout == "You said: hello (5 characters) \n"
    assert "out of luck" in ran.stderr
    assert ran.returncode == 11


def test_an_unknown_command_sends_nothing(pipe):
    ran = pipe("/nonsense\n/bye\nnever\n")
    assert ran.stdout == ""
    assert "is no command" in ran.stderr


def test_a_slash_between_quotes_is_text(pipe):
    ran = pipe('/etc/hosts is what?\n"""/etc/hosts is what?"""\n')
    assert ran.stdout == "You said: /etc/hosts is what? (19 characters) \n"
    assert "is no command" in ran.stderr


def test_an_answer_without_a_word_says_so(pipe):
    ran = pipe("hi\n", FAKE_ANSWER=" ")
    assert "the model wrote nothing" in ran.stderr


def test_chats_of_pipes_are_saved_and_continued(pipe):
    pipe("first\n")
    ran = pipe("second\n/stats\n", "--continue")
    assert ran.stdout == "You said: second (6 characters) \n"
    assert len(ran.stderr.split("turn  prompt")[1].splitlines()) == 3


def test_a_wrong_option_is_refused_before_a_model_is_loaded(pipe):
    for arguments, said in (
        (["--temperature", "-1"], "--temperature"),
        (["--resume", "--continue"], "excludes"),
        (["--continue"], "no saved chat"),
        (["--resume", "--no-save"], "--no-save"),
        (["one", "two"], "give one model"),
        (["--messages", "-"], "name a file"),
    ):
        ran = pipe("hi\n", *arguments)
        assert (ran.returncode, ran.stdout) == (2, ""), arguments
        assert said in ran.stderr


def test_a_screen_is_not_tried_on_a_dumb_terminal(environ):
    child = pexpect.spawn(
        sys.executable,
        [str(FAKE), "chat", "--no-save"],
        env=environ | {"TERM": "dumb"},
        encoding="utf-8",
        timeout=60,
    )
    child.expect(">>>")
    child.send("/bye\r")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_ctrl_c_stops_a_load_and_the_chat_lives(typed):
    child = typed(FAKE_LOAD="2", waits_for="50 %")
    child.sendintr()
    child.expect_exact("loading is stopped; /model NAME loads a model")
    child.expect(">>>")
    child.send("hi\r")
    child.expect_exact("no model is loaded")
    child.expect(">>> hi")
    child.sendintr()
    child.expect(">>>")
    child.send("/model other\r")
    child.expect_exact("mlxcel: other")
    child.expect(">>>")
    child.send("hi\r")
    child.expect_exact("You said: hi (2 characters)")


def test_ctrl_c_at_the_prompt_drops_the_line_and_names_the_way_out(typed):
    child = typed()
    child.send("half a li")
    child.sendintr()
    child.expect_exact("/bye or Ctrl-D leaves")
    child.send("whole\r")
    child.expect_exact("You said: whole (5 characters)")
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_ctrl_c_stops_an_answer_and_the_chat_continues(typed):
    child = typed(FAKE_PAUSE="0.3", FAKE_ANSWER="word " * 50)
    child.send("go\r")
    child.expect_exact("word word")
    child.sendintr()
    child.expect(r"stopped after \d+ tokens")
    child.expect(">>>")
    child.send("/bye\r")
    child.expect(pexpect.EOF)


ENDLESS = {"FAKE_PAUSE": "0.05", "FAKE_ANSWER": "word " * 2000}


@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1])
def test_ctrl_c_right_behind_a_line_stops_its_answer(typed, delay_s):
    # Until the line editor has put the terminal back it is a key, then a signal.
    child = typed(**ENDLESS)
    child.delaybeforesend = None
    for _ in range(3):
        child.send("go\r")
        time.sleep(delay_s)
        child.send("\x03")
        child.expect(r"stopped (before the first token|after \d+ tokens)")
        child.expect_exact(">>>")
    child.send("/bye\r")
    child.expect(pexpect.EOF)
    assert "Traceback" not in child.before
    child.close()
    assert child.exitstatus == 0


def test_what_is_typed_behind_ctrl_c_is_the_next_line(typed):
    child = typed(**ENDLESS)
    child.send("go\r\x03/by")
    child.expect("stopped before the first token")
    child.expect_exact(">>> /by")
    child.send("e\r")
    child.expect(pexpect.EOF)


def test_ctrl_c_right_behind_a_line_between_quotes_drops_them_all(typed):
    child = typed()
    child.send('"""half\r\x03')
    child.expect("dropped")
    child.expect_exact(">>>")
    child.send("whole\r")
    child.expect_exact("You said: whole (5 characters)")


def test_sigint_from_elsewhere_at_the_prompt_drops_the_line(typed):
    child = typed()
    child.send("half")
    child.expect_exact("half")
    child.kill(signal.SIGINT)
    child.expect("dropped")
    child.expect_exact(">>>")
    child.send("whole\r")
    child.expect_exact("You said: whole (5 characters)")


def test_several_lines_are_typed_between_quotes(typed):
    child = typed()
    child.send('"""a\r')
    child.expect_exact("...")
    child.send('b"""\r')
    child.expect_exact("(3 characters)")


def test_broken_bytes_in_a_pipe_are_replaced_and_the_rest_is_answered(environ):
    ran = subprocess.run(
        [sys.executable, str(FAKE), "chat"],
        input=b"a\xff\nnext\0\n", env=environ, capture_output=True, timeout=90, check=False,
    )  # fmt: skip
    assert ran.stdout.decode().splitlines() == [
        "You said: a\ufffd (2 characters) ",
        "You said: next\0 (5 characters) ",
    ]
    assert ran.returncode == 0


def test_no_control_character_of_an_answer_or_a_title_reaches_the_terminal(typed, tmp_path):
    hostile = tmp_path / "hostile.json"
    hostile.write_text('[{"role": "user", "content": "\\u001b]0;title\\u0007"}]')
    answer = "\x1b]0;pwned\x07\x9b2J end"
    chat = typed("--save", "--messages", str(hostile), FAKE_ANSWER=answer)
    chat.send("hello\r")
    chat.expect_exact("␛]0;pwned␇")
    chat.expect_exact(">>>")
    chat.send("/chats\r")
    chat.expect_exact("␛]0;title␇")
    chat.send("/bye\r")
    chat.expect(pexpect.EOF)


def test_a_history_that_cannot_be_kept_and_broken_bytes_end_nothing(typed, tmp_path):
    (tmp_path / "home" / "data" / "history").mkdir(parents=True)
    chat = typed("--save")
    os.write(chat.child_fd, b"a\xff\r")
    chat.expect_exact("You said: a\ufffd (2 characters)")
    chat.expect_exact(">>>")
    chat.send("\x1b[A\r")
    chat.expect_exact("You said: a\ufffd (2 characters)")
    chat.send("/bye\r")
    chat.expect(pexpect.EOF)


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_terminal_that_knows_nothing_gets_no_escape_code(typed, name):
    chat = typed(TERM=name)
    before = chat.before
    chat.send("hi\r")
    chat.expect_exact("You said: hi (2 characters)")
    chat.send("/bye\r")
    chat.expect(pexpect.EOF)
    assert "\x1b" not in before + chat.before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--resume: name the chat's id here"),
        (["zzzz"], "--resume: no saved chat has the id 'zzzz'; name the chat's id here"),
    ],
)
def test_a_pipe_cannot_choose_a_chat_and_says_what_is_missing(pipe, words, said):
    ran = pipe("hi", "--resume", *words)
    assert said in ran.stderr
    assert ran.returncode == 2
