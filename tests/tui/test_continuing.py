"""An answer that was cut off is continued by a key, which elsewhere is a character."""

import pytest

from engine.text.answer_text import TextDelta
from mlxcel_cli.tui.prompt import ALONE_S
from tests.tui.rigs import (
    Gate,
    ScriptedBackend,
    ask,
    done,
    ready,
    say,
    screen_lines,
    settled,
    texts,
    until,
)

CUT = [TextDelta("One two", tokens=2), done("One two", finish="length")]


@pytest.mark.parametrize(
    ("key", "focus"), [("c", "prompt"), ("c", "transcript"), ("ctrl+g", "prompt")]
)
def test_an_answer_that_was_cut_says_so_and_is_continued(chat, key, focus):
    backend = ScriptedBackend(
        CUT,
        [TextDelta("One two"), TextDelta(" three", tokens=1), done("One two three")],
    )

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "count")
        assert "cut at 21 tokens — press c to continue" in screen_lines(pilot.app)
        if focus == "transcript":
            pilot.app.conversation.transcript.focus()
        await pilot.press(key)
        await until(pilot, lambda: texts(pilot.app) == ["count", "One two three"])
        await settled(pilot)
        assert screen_lines(pilot.app).count("One two") == 1

    chat(backend, steps)
    assert backend.requests[1].prompt.prefill == "One two"


def test_a_message_after_a_cut_answer_may_begin_with_the_key_that_continues(chat):
    backend = ScriptedBackend(CUT)

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "count")
        await pilot.press("c", "a", "n", "backspace", "backspace")
        await pilot.pause(2 * ALONE_S)
        assert pilot.app.prompt.text == "c"
        await pilot.press("enter")
        await until(pilot, lambda: texts(pilot.app)[2:] == ["c", "ok"])

    chat(backend, steps)


def test_a_character_is_no_key_where_nothing_can_be_continued(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "count")
        await pilot.press("c")
        await pilot.pause(2 * ALONE_S)
        assert pilot.app.prompt.text == "c"

    chat(ScriptedBackend(), steps)


def test_the_key_that_continues_is_changed_in_the_options_file(chat, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[keys]\ncontinue = "f8,g"\n')
    backend = ScriptedBackend(CUT, CUT, CUT)

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "count")
        assert "press F8 to continue" in screen_lines(pilot.app)
        await pilot.press("c")
        await pilot.pause(2 * ALONE_S)
        assert pilot.app.prompt.text == "c"
        await pilot.press("backspace", "g")
        await until(pilot, lambda: len(backend.requests) == 2)
        await settled(pilot)
        await pilot.press("f8")
        await until(pilot, lambda: len(backend.requests) == 3)
        await settled(pilot)

    chat(backend, steps, config=config)


def test_an_answer_that_is_written_is_not_stopped_by_the_key_that_continues(chat):
    gate = Gate()

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, gate.reached.is_set)
        pilot.app.conversation.transcript.focus()
        await pilot.press("c")
        await pilot.pause()
        assert pilot.app.session.is_generating
        gate.opened.set()
        await settled(pilot)

    chat(ScriptedBackend([TextDelta("x"), gate, done("x")]), steps)


def test_what_waits_for_the_model_continues_the_cut_answer(chat):
    gate = Gate()
    backend = ScriptedBackend(
        CUT, [TextDelta("One two"), TextDelta(" three"), done("One two three")]
    )

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "count")
        backend.load_script = [gate]
        await say(pilot, "/model other")
        await until(pilot, gate.reached.is_set)
        await pilot.press("c")
        await until(pilot, lambda: pilot.app.conversation.is_waiting)
        gate.opened.set()
        await until(pilot, lambda: texts(pilot.app) == ["count", "One two three"])

    chat(backend, steps)
    assert backend.requests[1].prompt.prefill == "One two"
