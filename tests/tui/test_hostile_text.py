"""Control characters anywhere in a chat are marks on the screen: none reaches the terminal."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from engine.errors import EvalFailed
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import LookupRefused
from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.tui.app import ChatApp
from tests.cli.test_plain_text import HOSTILE, controls
from tests.tui.rigs import (
    REPORT,
    ScriptedBackend,
    ask,
    chat_in_file,
    done,
    ready,
    say,
    screen_lines,
    settled,
)

CODE = f"text\n\n```{HOSTILE}\n{HOSTILE}code\n```\n\n| a{HOSTILE} | b |\n|---|---|\n| c | d |\n"


def shown(app: ChatApp) -> str:
    """The screen, which holds no control character, wherever the text came from."""
    lines = screen_lines(app)
    assert controls(lines) == set()
    return lines


def test_in_messages_answers_thinking_ends_and_notices(chat):
    answer = [
        TextDelta(HOSTILE, is_reasoning=True, tokens=1),
        TextDelta(CODE, tokens=2),
        LookupRefused(HOSTILE),
        done(CODE, finish=HOSTILE),
    ]
    backend = ScriptedBackend(answer, [EvalFailed(HOSTILE)])
    backend.report = replace(REPORT, name=f"name{HOSTILE}", device=HOSTILE, warnings=(HOSTILE,))

    async def steps(pilot):
        await ready(pilot)
        await pilot.pause()
        assert "name␛" in shown(pilot.app)
        await ask(pilot, f"hello {HOSTILE}")
        assert "hello ␛]0;pwned␇" in shown(pilot.app)
        await pilot.press("ctrl+t", "f2")
        await pilot.pause()
        shown(pilot.app)
        await say(pilot, f"/set {HOSTILE} 1")
        await pilot.pause()
        shown(pilot.app)
        await say(pilot, "fails")
        await pilot.pause(0.1)
        shown(pilot.app)

    chat(backend, steps, size=(100, 50))


def test_in_the_prompt_which_keeps_the_text(chat):
    backend = ScriptedBackend("ok")

    async def steps(pilot):
        await ready(pilot)
        pilot.app.post_message(events.Paste(f"a{HOSTILE}b\nc"))
        await pilot.pause()
        assert "a␛]0;pwned␇" in shown(pilot.app)
        await pilot.press("enter")
        await settled(pilot)
        kept = pilot.app.session.chat.messages[0].text
        assert kept.startswith("a\x1b]0;pwned\x07")
        await pilot.press("up")
        await pilot.pause()
        assert "a␛]0;pwned␇" in shown(pilot.app)

    chat(backend, steps)


@pytest.mark.parametrize("action", ["Rename chat", "System text", "Resume chat"])
def test_in_dialogs_and_what_is_pasted_into_them(chat, environ, action):
    store = ChatStore(Path(environ["MLXCEL_HOME"]) / "data" / "chats.sqlite3")
    saved = store.save(Chat(store.new_id(), f"title{HOSTILE}", HOSTILE).asked("x"))

    async def steps(pilot):
        await ready(pilot)
        offers = {one.title: one for one in pilot.app.get_system_commands(pilot.app.screen)}
        await offers[action].callback()
        await pilot.pause()
        shown(pilot.app)
        pilot.app.post_message(events.Paste(HOSTILE))
        await pilot.pause()
        shown(pilot.app)
        await pilot.press("escape")

    def resumed(pilot):
        pilot.app.session.resume(store.load(saved.id))
        return steps(pilot)

    chat(ScriptedBackend(), resumed)


def test_in_the_palette_which_names_code_blocks(chat):
    backend = ScriptedBackend(CODE)

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "hi")
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"code")
        await pilot.pause(0.5)
        assert "code block" in shown(pilot.app)

    chat(backend, steps, size=(100, 50))


def test_in_names_of_files_that_are_completed(chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\x1b]0;pwned\x07.txt").write_text("text")

    async def steps(pilot):
        await ready(pilot)
        await pilot.press("@", "a")
        await pilot.pause()
        assert "@a␛" in shown(pilot.app)
        await pilot.press("tab")
        await pilot.pause()
        shown(pilot.app)

    chat(ScriptedBackend(), steps)


@pytest.mark.parametrize("typed", ["@~nobody-of-this-name/x", "@~nobody-of-this-name", "@a\0b/c"])
def test_a_path_that_cannot_be_is_text_while_it_is_typed_and_sent(chat, typed):
    async def steps(pilot):
        await ready(pilot)
        pilot.app.prompt.fill(typed)
        await pilot.press("tab")
        await ask(pilot, typed)
        assert pilot.app.session.chat.messages[0].text == typed

    chat(ScriptedBackend("ok"), steps)


def test_an_answer_of_lone_surrogates_is_shown_and_saved(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "half of an emoji: \ud83d")
        shown(pilot.app)

    app = chat(ScriptedBackend("\ud83d and \udc00"), steps)
    kept = chat_in_file(app)
    assert kept.messages[-1].text == "\ufffd and \ufffd"
    assert kept.messages[-1] == replace(app.session.chat.messages[-1], text="\ufffd and \ufffd")
    assert isinstance(kept.messages[-1], ChatMessage)
    assert kept.messages[-1].role == ASSISTANT
