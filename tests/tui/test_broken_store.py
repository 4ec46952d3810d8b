"""Saved chats that cannot be used any more, or not just now, during a chat."""

from pathlib import Path

from engine.text.answer_text import TextDelta
from mlxcel_cli.chat.store import ChatStore
from tests.chat.locks import held_elsewhere
from tests.tui.rigs import (
    Gate,
    ScriptedBackend,
    ask,
    chat_in_file,
    done,
    notices,
    ready,
    say,
    settled,
    texts,
    until,
)


def test_a_file_of_chats_that_breaks_meanwhile_is_reported_and_ends_nothing(chat):
    gate = Gate()
    backend = ScriptedBackend(
        [TextDelta("Hel", tokens=1), gate, TextDelta("lo", tokens=2), done("Hello")]
    )

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, gate.reached.is_set)
        pilot.app.command_context.store.path.write_bytes(b"no database" * 100)
        gate.opened.set()
        await settled(pilot)
        assert texts(pilot.app) == ["hi", "Hello"]
        assert any("cannot be used" in notice for notice in notices(pilot.app))
        pilot.app.clear_notifications()
        await pilot.press("ctrl+o")
        await pilot.pause()
        assert any("cannot be used" in notice for notice in notices(pilot.app))
        await pilot.press("escape")
        await say(pilot, "more")
        await pilot.pause()
        assert pilot.app.prompt.text == "more"
        assert texts(pilot.app) == ["hi", "Hello"]

    chat(backend, steps)


def test_a_file_of_chats_that_another_program_holds_keeps_nobody_waiting(chat):
    backend = ScriptedBackend("Hello", "Again")

    async def steps(pilot):
        await ready(pilot)
        app = pilot.app
        with held_elsewhere(app.command_context.store.path):
            await ask(pilot, "hi")
            await ask(pilot, "more")
            assert texts(app) == ["hi", "Hello", "more", "Again"]
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(notices(app)) > 1)
            assert all("held by another program" in notice for notice in notices(app))
            assert any("saved once it can be" in notice for notice in notices(app))
            await pilot.press("escape")
        await until(pilot, lambda: any("saved now" in notice for notice in notices(app)))
        assert chat_in_file(app) == app.session.chat

    chat(backend, steps)


def test_what_waits_for_the_file_is_saved_behind_the_screen(terminal, environ):
    path = Path(environ["MLXCEL_HOME"]) / "data" / "chats.sqlite3"
    with held_elsewhere(path):
        started = terminal()
        started.until("Enter sends")
        started.child.send("hello\r")
        started.until("You said: hello")
        started.child.send("\x11")
        started.until("waits for another program")
    assert started.until_end() == 0
    saved = ChatStore(path).newest()
    assert saved is not None
    assert saved.messages[0].text == "hello"


def test_ctrl_c_while_the_file_is_waited_for_reports_that_the_chat_is_not_saved(terminal, environ):
    with held_elsewhere(Path(environ["MLXCEL_HOME"]) / "data" / "chats.sqlite3"):
        started = terminal("--plain")
        started.until(">>>")
        started.child.send("hello\r")
        started.until("You said: hello")
        started.until("saved later")
        started.child.send("/bye\r")
        started.until("Ctrl-C stops waiting")
        started.child.sendintr()
        started.until("not saved")
        assert started.until_end() == 130
