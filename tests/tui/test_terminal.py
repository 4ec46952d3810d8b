"""The chat's screen in a real pseudo-terminal: keys, signals, crashes, resizing."""

import os
import signal

import pytest

LEFT_SCREEN = "\x1b[?1049l"
"""What gives the terminal its own screen back."""

SLOW = {"FAKE_PAUSE": "0.2", "FAKE_ANSWER": "海 日本 🙂 語 " * 30}


def began(terminal, *arguments: str, **values):
    started = terminal("--no-save", *arguments, **values)
    started.until("Enter sends")
    started.until("fake")
    return started


def test_characters_and_enter_that_come_at_once_are_one_message(terminal):
    chat = began(terminal)
    chat.child.send("hello there\rmore")
    chat.until("You said: hello there (11 characters)")
    chat.until("more")
    chat.child.send("\x11")
    assert chat.until_end() == 0
    assert LEFT_SCREEN in chat.raw


def test_ctrl_c_while_loading_and_before_the_first_token_leaves_the_app_alive(terminal):
    chat = terminal("--no-save", FAKE_LOAD="3")
    chat.until("loading: 50 %")
    chat.child.send("\x03")
    chat.until("Loading is stopped")
    chat.child.send("/model again\r")
    chat.until("again")
    chat.child.send("hi\r")
    chat.until("You said: hi")
    chat.child.send("\x11")
    assert chat.until_end() == 0


def test_wide_text_survives_resizing_while_it_streams(terminal):
    chat = began(terminal, **SLOW)
    chat.child.send("go\r")
    chat.until("海 日本")
    for columns in (40, 120, 80):
        chat.resize(24, columns)
        for _ in range(6):
            chat.read()
    chat.child.send("\x1b")
    chat.until("stopped after")
    words = "".join(chat.shown.split())
    body = words[words.index("go") + 2 : words.index("stoppedafter")]
    assert body.replace("🙂", "") == ("海日本語" * 40)[: len(body.replace("🙂", ""))]
    chat.child.send("\x11")
    assert chat.until_end() == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(terminal, signum):
    chat = began(terminal, **SLOW)
    chat.child.send("go\r")
    chat.until("海 日本")
    chat.child.kill(signum)
    assert chat.until_end() == 128 + signum
    assert LEFT_SCREEN in chat.raw


def test_a_crash_gives_the_terminal_back_and_fails(terminal):
    chat = began(terminal)
    chat.child.send("crash\r")
    assert chat.until_end() == 1
    assert LEFT_SCREEN in chat.raw
    assert "ZeroDivisionError" in chat.raw.split(LEFT_SCREEN)[-1]


def test_a_bracketed_paste_of_5000_lines_is_one_message(terminal):
    chat = began(terminal)
    chat.child.send("\x1b[200~" + "\n".join(["line"] * 5000) + "\x1b[201~")
    for _ in range(5):
        chat.read()
    chat.child.send("\r")
    chat.until("(24999")
    chat.child.send("\x11")
    assert chat.until_end() == 0


def test_broken_bytes_that_are_pasted_or_typed_are_replaced(terminal):
    chat = began(terminal)
    os.write(chat.child.child_fd, b"\x1b[200~a\xff\xfe\nb\x1b[201~\xe9c\r")
    chat.until("(7 characters)")
    chat.child.send("\x11")
    assert chat.until_end() == 0
