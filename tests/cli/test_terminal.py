"""``mlxcel generate`` in a real pseudo-terminal: signals, progress, escape codes, resizing."""

import signal
import time

import pexpect
import pytest

ESCAPE = "\x1b"
LOAD_FOREVER = {"load": [["progress", "loading", 1, 2], ["sleep", 60]]}
PREFILL_FOREVER = {"answer": [["read", 512, 9000], ["sleep", 60]]}
DECODE_FOREVER = {"answer": [["text", "Hello"], ["sleep", 60]]}
MOMENTS = [
    pytest.param(LOAD_FOREVER, "loading: 50 %", id="while the model loads"),
    pytest.param(PREFILL_FOREVER, "512 of 9000", id="while the prompt is read"),
    pytest.param(DECODE_FOREVER, "Hello", id="while the answer is written"),
]


def seconds_to_end(child: pexpect.spawn) -> float:
    asked = time.monotonic()
    child.expect(pexpect.EOF)
    child.close()
    return time.monotonic() - asked


@pytest.mark.parametrize(("script", "shown"), MOMENTS)
def test_ctrl_c_is_noticed_at_once_and_exits_130(terminal, script, shown):
    child = terminal.start("generate", "hi", script=script)
    child.expect_exact(shown)
    child.sendintr()
    child.expect_exact("mlxcel: interrupted")
    assert seconds_to_end(child) < 10
    assert (child.exitstatus, child.signalstatus) == (130, None)


@pytest.mark.parametrize(("script", "shown"), MOMENTS)
def test_sigterm_ends_it_as_well_and_exits_143(terminal, script, shown):
    child = terminal.start("generate", "hi", script=script)
    child.expect_exact(shown)
    child.kill(signal.SIGTERM)
    child.expect_exact("mlxcel: terminated")
    seconds_to_end(child)
    assert (child.exitstatus, child.signalstatus) == (143, None)


def test_a_closed_terminal_ends_it_in_order_and_exits_129(program):
    child = program.start("generate", "hi", script=DECODE_FOREVER)
    assert child.stdout.read(5) == b"Hello"
    child.send_signal(signal.SIGHUP)
    rest, told = child.communicate(timeout=30)
    assert (child.returncode, rest, told) == (129, b"\n", b"mlxcel: interrupted\n")


def test_the_second_ctrl_c_exits_hard(terminal):
    child = terminal.start("generate", "hi", script=LOAD_FOREVER, FAKE_SLOW_END="60")
    child.expect_exact("loading: 50 %")
    child.sendintr()
    child.expect_exact("mlxcel: interrupted")
    child.sendintr()
    seconds_to_end(child)
    assert (child.exitstatus, child.signalstatus) == (130, None)


def test_ctrl_c_during_start_up_shows_no_traceback(terminal):
    child = terminal.start("generate", "hi", FAKE_SLOW_START="60")
    child.expect_exact("importing")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert "Traceback" not in child.before
    assert child.exitstatus == 130


def test_what_was_written_before_a_signal_stays_on_its_own_line(program):
    child = program.start("generate", "hi", script=DECODE_FOREVER)
    assert child.stdout.read(5) == b"Hello"
    child.send_signal(signal.SIGINT)
    rest, told = child.communicate(timeout=30)
    assert (child.returncode, rest, told) == (130, b"\n", b"mlxcel: interrupted\n")


def test_progress_is_one_line_that_is_gone_before_the_answer(terminal):
    script = {
        "load": [["progress", "loading", 1, 4], ["sleep", 0.2], ["progress", "loading", 3, 4]],
        "answer": [["read", 512, 9000], ["sleep", 0.2], ["text", "Hello"]],
    }
    child = terminal.run("generate", "hi", script=script)
    text = child.before
    assert "\rloading: 25 %" in text
    assert "\rreading the prompt: 512 of 9000 tokens" in text
    assert text.count("\n") == 1
    assert text.endswith(f"\r{' ' * len('reading the prompt: 512 of 9000 tokens')}\rHello\r\n")


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"NO_COLOR": "1"}, id="NO_COLOR is set"),
        pytest.param({"TERM": "dumb"}, id="the terminal is dumb"),
    ],
)
def test_no_escape_code_is_written_where_nobody_wants_one(terminal, extra):
    script = {
        "load": [["progress", "loading", 1, 2]],
        "answer": [["think", "hm"], ["text", "Hello"]],
    }
    child = terminal.run("generate", "hi", "--show-reasoning", script=script, **extra)
    assert "hm\r\nHello\r\n" in child.before
    assert ESCAPE not in child.before


def test_an_empty_no_color_changes_nothing(terminal):
    script = {"answer": [["think", "hm"], ["text", "Hello"]]}
    child = terminal.run("generate", "hi", "--show-reasoning", script=script, NO_COLOR="")
    assert f"{ESCAPE}[2mhm{ESCAPE}[0m" in child.before


def test_a_dumb_terminal_gets_no_progress_line(terminal):
    script = {"load": [["progress", "loading", 1, 2]], "answer": [["text", "Hello"]]}
    assert terminal.run("generate", "hi", script=script, TERM="dumb").before == "Hello\r\n"


def test_the_progress_line_fits_a_terminal_that_was_made_narrow(terminal):
    stage = "downloading " + "x" * 200
    script = {
        "load": [["progress", stage, 1, 4], ["sleep", 1], ["progress", stage, 2, 4]],
        "answer": [["text", "Hello"]],
    }
    child = terminal.start("generate", "hi", script=script)
    child.expect_exact("downloading ")
    child.setwinsize(24, 40)
    child.expect(pexpect.EOF)
    *_, after, _blank, _answer = child.before.split("\r")[:-1]
    assert len(after) <= 39


def test_resizing_while_wide_text_streams_doubles_and_loses_nothing(terminal):
    word = "日本語🌊 "
    steps = [step for _ in range(30) for step in (["text", word], ["sleep", 0.02])]
    child = terminal.start("generate", "hi", script={"answer": steps})
    child.expect_exact(word)
    child.setwinsize(24, 40)
    child.expect_exact(word * 5)
    child.setwinsize(24, 120)
    child.expect(pexpect.EOF)
    assert child.before == word * 24 + "\r\n"


def test_no_prompt_on_a_terminal_names_the_chat(terminal):
    child = terminal.run("generate")
    assert child.exitstatus == 2
    assert "mlxcel chat" in child.before


def test_a_prompt_can_be_typed_when_it_is_asked_for(terminal):
    child = terminal.start(
        "generate", "-", script={"load": [["sleep", 0.1]], "answer": [["text", "Hello"]]}
    )
    child.sendline("a question")
    child.sendeof()
    child.expect_exact("Hello")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
