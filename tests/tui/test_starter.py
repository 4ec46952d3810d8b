"""The chat's screen on the real starter model in a pseudo-terminal, used without mercy."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from mlxcel_cli.chat.store import ChatStore

pytestmark = [pytest.mark.starter, pytest.mark.slow]

LEFT_SCREEN = "\x1b[?1049l"
"""What gives the terminal its own screen back."""

LEAVE, STOP, ESC, SEND, NEW = "\x11", "\x03", "\x1b", "\r", "\x0e"

GREEDY = ("--temperature", "0")

LONG_STORY = "Tell me a very long story about a whale and a ship." + SEND


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def leaves(chat) -> None:
    chat.child.send(LEAVE)
    assert chat.until_end() == 0
    assert LEFT_SCREEN in chat.raw
    assert "Traceback" not in chat.raw


def stored(environ) -> ChatStore:
    return ChatStore(Path(environ["MLXCEL_HOME"]) / "data" / "chats.sqlite3")


def until(chat, holds) -> None:
    """Let the program run until something holds."""
    end = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < end, chat.shown
        assert chat.read(), chat.shown


def test_ctrl_c_while_it_loads_and_before_the_first_token_leaves_the_app_alive(
    starter, starter_folder
):
    chat = starter("--no-save")
    chat.after("loading", STOP)
    chat.until("Loading is stopped")
    chat.child.send(f"/model {starter_folder}\r")
    chat.until("cpu")
    chat.child.send(paste("the sea is wide and the wind is cold " * 700))
    chat.read(0.5)
    chat.child.send(SEND)
    chat.after("reading", STOP)
    chat.until("stopped before the first token")
    chat.child.send(NEW)
    chat.child.send("Say hello." + SEND)
    chat.until("tok/s")
    leaves(chat)


def test_esc_in_an_answer_keeps_it_and_the_next_turn_reads_only_what_is_new(starter, environ):
    chat = starter(*GREEDY)
    chat.child.send(LONG_STORY)
    chat.until("tok/s")
    chat.child.send(ESC)
    chat.until("stopped after")
    chat.child.send("Shorter, please." + SEND)
    until(chat, lambda: len(stored(environ).newest().messages) == 4)
    chat.child.send(ESC)
    leaves(chat)
    saved = stored(environ).newest()
    first, second = (one for one in saved.messages if one.role == "assistant")
    assert first.finish == "stopped"
    assert first.text
    assert second.numbers.evaluated_tokens <= saved.new_tokens[1] + 8


def test_wide_text_survives_resizing_while_it_streams(starter, environ, tmp_path):
    wide = "海 日本 🙂 語 " * 12
    turns = [{"role": role, "content": wide} for role in ("user", "assistant")] * 2
    (tmp_path / "wide.json").write_text(json.dumps(turns))
    chat = starter(*GREEDY, "--messages", str(tmp_path / "wide.json"))
    chat.until("cpu")
    chat.child.send("again" + SEND)
    chat.until("again")
    until(chat, lambda: "日" in chat.shown.rpartition("again")[2])
    for columns in (40, 120, 80):
        chat.resize(24, columns)
        for _ in range(8):
            chat.read()
    chat.child.send(ESC)
    for _ in range(8):
        chat.read()
    shown = "".join(chat.shown.split())
    shown = re.split("stoppedafter|╭", shown[shown.rindex("again") + 5 :])[0]
    leaves(chat)
    wrote = "".join(stored(environ).newest().last_answer.text.split()).replace("�", "")
    assert len(wrote) > 3
    assert shown.replace("�", "").replace("🙂", "") == wrote.replace("🙂", "")


def test_a_paste_that_is_too_long_for_the_model_is_reported_and_given_back(starter):
    chat = starter("--no-save")
    chat.until("cpu")
    chat.child.send(paste("\n".join(f"line {n}" for n in range(5000))))
    chat.until("line 4999")
    chat.child.send(SEND)
    chat.until("context")
    chat.until("line 4999")
    leaves(chat)


@pytest.mark.parametrize("moment", ["loading", "tok/s"])
def test_sigterm_gives_the_terminal_back(starter, moment):
    chat = starter("--no-save", *GREEDY)
    chat.child.send(LONG_STORY)
    chat.until(moment)
    chat.child.kill(signal.SIGTERM)
    assert chat.until_end() == 128 + signal.SIGTERM, chat.raw[-3000:]
    assert LEFT_SCREEN in chat.raw


def test_a_killed_chat_continues_where_it_was(starter, environ):
    chat = starter(*GREEDY)
    chat.child.send(LONG_STORY)
    chat.until("tok/s")
    until(chat, lambda: stored(environ).newest().last_answer is not None)
    chat.child.kill(signal.SIGKILL)
    chat.until_end()
    left = stored(environ).newest().last_answer.text
    assert left
    again = starter("--continue", *GREEDY)
    again.until("broken off after")
    again.until("press c to continue")
    again.until("cpu")
    again.child.send("c")
    until(again, lambda: len(stored(environ).newest().last_answer.text) > len(left))
    again.child.send(ESC)
    leaves(again)
    saved = stored(environ).newest()
    assert len(saved.messages) == 2
    assert saved.last_answer.text.startswith(left)
    assert len(saved.last_answer.text) > len(left)


def test_two_chats_that_continue_one_keep_what_each_of_them_said(starter, environ):
    first = starter(*GREEDY, "-n", "8")
    first.child.send("Name a fish." + SEND)
    first.until("cut at 8 tokens")
    leaves(first)
    both = [starter("--continue", *GREEDY, "-n", "8") for _ in range(2)]
    for chat, bird in zip(both, ("raven", "heron"), strict=True):
        chat.until("cut at 8 tokens")
        chat.until("cpu")
        chat.child.send(f"Is a {bird} one?" + SEND)
    for chat, bird in zip(both, ("raven", "heron"), strict=True):
        chat.until(f"{bird} one?")
        for _ in range(20):
            chat.read()
        leaves(chat)
    saved = [stored(environ).load(one.id) for one in stored(environ).chats()]
    asked = sorted([one.text for one in chat.messages if one.role == "user"] for chat in saved)
    assert asked == [["Name a fish.", "Is a heron one?"], ["Name a fish.", "Is a raven one?"]]
    assert all(len(chat.messages) == 4 for chat in saved)
