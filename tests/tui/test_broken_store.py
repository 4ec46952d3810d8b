"""Saved chats that cannot be used any more, while a chat goes on."""

from mlxcel_cli.answers import Piece
from tests.tui.rigs import Hold, ScriptedBackend, done, notices, ready, say, settled, texts, until


def test_a_file_of_chats_that_breaks_meanwhile_is_told_and_ends_nothing(chat):
    hold = Hold()
    backend = ScriptedBackend([Piece("Hel", tokens=1), hold, Piece("lo", tokens=2), done("Hello")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, hold.reached.is_set)
        pilot.app.store.path.write_bytes(b"no database" * 100)
        hold.go_on.set()
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
