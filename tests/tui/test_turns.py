"""A turn on the screen: sent, waited for, written, stopped, failed, edited, kept."""

from dataclasses import replace

import pytest

from engine.errors import EvalFailed, ModelNotFound
from engine.events import PrefillProgress
from engine.models.progress import Progress
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import LookupRefused
from mlxcel_cli.tui.app import ChatApp
from mlxcel_cli.tui.transcript import AnswerTurn, Transcript, UserTurn
from tests.tui.rigs import (
    REPORT,
    Gate,
    ScriptedBackend,
    ask,
    chat_in_file,
    done,
    notices,
    ready,
    say,
    screen_lines,
    settled,
    texts,
    until,
)


def test_a_message_is_answered_and_both_are_saved(chat):
    async def steps(pilot):
        await ready(pilot)
        await pilot.press(*"hi", "enter")
        await settled(pilot)
        assert texts(pilot.app) == ["hi", "Hello"]
        assert pilot.app.prompt.text == ""

    app = chat(ScriptedBackend("Hello"), steps)
    assert chat_in_file(app) == app.session.chat


def test_the_first_screen_is_there_before_a_model_and_typing_too(chat):
    gate = Gate()
    backend = ScriptedBackend("Hello", load=[Progress("loading", 45, 100), gate])

    async def steps(pilot):
        await until(pilot, gate.reached.is_set)
        await until(pilot, lambda: "loading: 45 %" in screen_lines(pilot.app))
        await pilot.press(*"hi", "enter")
        await pilot.pause()
        assert "waiting for the model" in screen_lines(pilot.app)
        assert backend.requests == []
        gate.opened.set()
        await settled(pilot)
        assert texts(pilot.app) == ["hi", "Hello"]

    chat(backend, steps)


@pytest.mark.parametrize("stops", [False, True])
def test_a_message_sent_before_the_load_has_begun_waits_for_it(chat, monkeypatch, stops):
    begin = ChatApp.begin
    monkeypatch.setattr(ChatApp, "begin", lambda _: None)

    async def steps(pilot):
        await pilot.press(*"hi", "enter")
        await pilot.pause()
        assert "waiting for the model" in screen_lines(pilot.app)
        assert notices(pilot.app) == []
        if stops:
            await pilot.press("escape")
            assert pilot.app.prompt.text == "hi"
        begin(pilot.app)
        await ready(pilot)
        if not stops:
            await settled(pilot)
            assert texts(pilot.app) == ["hi", "Hello"]

    chat(ScriptedBackend("Hello"), steps)


def test_esc_while_it_waits_gives_the_message_back_and_the_load_continues(chat):
    gate = Gate()

    async def steps(pilot):
        await until(pilot, gate.reached.is_set)
        await say(pilot, "hi")
        await until(pilot, lambda: pilot.app.conversation.is_waiting)
        await pilot.press("escape")
        assert (pilot.app.prompt.text, texts(pilot.app)) == ("hi", [])
        gate.opened.set()
        await ready(pilot)

    chat(ScriptedBackend(load=[gate]), steps)


def test_ctrl_c_stops_a_load_and_the_app_lives(chat):
    gate = Gate()
    backend = ScriptedBackend("Hello", load=[gate])

    async def steps(pilot):
        await until(pilot, gate.reached.is_set)
        await pilot.press("ctrl+c")
        assert "Loading is stopped" in notices(pilot.app)[-1]
        gate.opened.set()
        backend.load_script = []
        await say(pilot, "/model other")
        await ready(pilot)
        await ask(pilot, "hi")

    chat(backend, steps)
    assert backend.loads == [None, "other"]


def test_a_model_that_is_not_there_is_reported_and_the_message_given_back(chat):
    backend = ScriptedBackend(load=[ModelNotFound("x", "try mlxcel models list")])

    async def steps(pilot):
        await until(pilot, lambda: notices(pilot.app))
        assert "try mlxcel models list" in notices(pilot.app)[-1]
        await say(pilot, "hi")
        await until(pilot, lambda: len(notices(pilot.app)) > 1)
        assert pilot.app.prompt.text == "hi"
        assert "no model" in screen_lines(pilot.app)

    chat(backend, steps)


def test_esc_stops_an_answer_which_stays_and_the_next_turn_continues(chat):
    gate = Gate()
    backend = ScriptedBackend([TextDelta("Once upon", tokens=2), gate, done("never")], "More")

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "tell me")
        await until(pilot, lambda: "Once upon" in screen_lines(pilot.app))
        await pilot.press("escape")
        assert texts(pilot.app) == ["tell me", "Once upon"]
        assert "stopped after 2 tokens" in screen_lines(pilot.app)
        gate.opened.set()
        await ask(pilot, "and then?")
        assert texts(pilot.app) == ["tell me", "Once upon", "and then?", "More"]

    chat(backend, steps)
    sent = [one["content"] for one in backend.requests[1].prompt.messages]
    assert sent == ["tell me", "Once upon", "and then?"]


def test_ctrl_c_before_the_first_token_keeps_the_question(chat):
    gate = Gate()
    backend = ScriptedBackend([PrefillProgress("", 5, 90), gate, done("never")], "Hello")

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: "reading 5 of 90 tokens" in screen_lines(pilot.app))
        await pilot.press("ctrl+c")
        assert "stopped before the first token" in screen_lines(pilot.app)
        gate.opened.set()
        await pilot.press("ctrl+r")
        await settled(pilot)
        await until(pilot, lambda: texts(pilot.app) == ["hi", "Hello"])

    chat(backend, steps)


def test_ctrl_c_copies_what_is_selected_and_stops_nothing(chat):
    gate = Gate()
    backend = ScriptedBackend([TextDelta("Once"), gate, done("Once")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: "Once" in screen_lines(pilot.app))
        await pilot.press(*"abc", "shift+home", "ctrl+c")
        assert pilot.app.clipboard == "abc"
        assert pilot.app.session.is_generating
        gate.opened.set()
        await settled(pilot)

    chat(backend, steps)


def test_an_error_is_reported_and_the_prompt_restored(chat):
    backend = ScriptedBackend([EvalFailed("out of luck")], "Hello")

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: notices(pilot.app))
        await pilot.pause()
        assert "out of luck" in notices(pilot.app)[-1]
        assert (pilot.app.prompt.text, texts(pilot.app)) == ("hi", [])
        await pilot.press("enter")
        await until(pilot, lambda: texts(pilot.app) == ["hi", "Hello"])

    chat(backend, steps)


def test_an_error_in_the_middle_keeps_what_was_written(chat):
    backend = ScriptedBackend([TextDelta("Hel", tokens=1), EvalFailed("out of luck")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: notices(pilot.app))
        await pilot.pause()
        assert texts(pilot.app) == ["hi", "Hel"]
        assert "broken off after 1 tokens" in screen_lines(pilot.app)

    chat(backend, steps)


def test_a_message_sent_while_an_answer_is_written_stays_in_the_prompt(chat):
    gate = Gate()

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "one")
        await until(pilot, gate.reached.is_set)
        await say(pilot, "two")
        await until(pilot, lambda: notices(pilot.app))
        assert pilot.app.prompt.text == "two"
        gate.opened.set()
        await settled(pilot)

    chat(ScriptedBackend([TextDelta("x"), gate, done("x")]), steps)


def test_an_answer_without_a_word_says_so(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "hi")
        assert "the model wrote nothing" in screen_lines(pilot.app)

    chat(ScriptedBackend([done("")]), steps)


def test_up_in_an_empty_prompt_edits_the_last_turn(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "first")
        await ask(pilot, "secnd")
        await pilot.press("up")
        await pilot.pause()
        assert (pilot.app.prompt.text, len(texts(pilot.app))) == ("secnd", 2)
        pilot.app.prompt.fill("second")
        await pilot.press("enter")
        await until(pilot, lambda: texts(pilot.app) == ["first", "ok", "second", "ok"])
        assert len(pilot.app.query(UserTurn)) == 2

    chat(ScriptedBackend(), steps)


def test_regenerating_replaces_the_answer_on_the_screen_and_in_the_chat(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "hi")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: texts(pilot.app) == ["hi", "two"])
        await settled(pilot)
        assert len(pilot.app.query(AnswerTurn)) == 1
        assert "one" not in screen_lines(pilot.app)

    chat(ScriptedBackend("one", "two"), steps)


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter"])
def test_new_lines_are_typed_without_sending(chat, key):
    async def steps(pilot):
        await ready(pilot)
        await pilot.press("a", key, "b")
        assert pilot.app.prompt.text == "a\nb"
        await pilot.press("enter")
        await until(pilot, lambda: texts(pilot.app) == ["a\nb", "ok"])

    chat(ScriptedBackend(), steps)


def test_thinking_is_folded_with_its_count_and_opens(chat):
    thought = TextDelta("Let me see.", is_reasoning=True, tokens=4)
    backend = ScriptedBackend([thought, TextDelta("42", tokens=5), done("42")])

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "why?")
        assert "thinking · 4 tokens" in screen_lines(pilot.app)
        assert "Let me see." not in screen_lines(pilot.app)
        await pilot.press("ctrl+t")
        await pilot.pause(0.1)
        assert "Let me see." in screen_lines(pilot.app)

    chat(backend, steps)


def test_thinking_is_switched_where_the_template_can(chat):
    backend = ScriptedBackend()
    backend.report = replace(REPORT, can_switch_thinking=True)

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "/thinking off")
        await until(pilot, lambda: notices(pilot.app))
        await ask(pilot, "hi")

    chat(backend, steps)
    assert backend.requests[0].prompt.template_values == {"enable_thinking": False}


def test_why_prompt_lookup_is_off_stands_in_the_status_line(chat):
    backend = ScriptedBackend([LookupRefused("is not possible here"), TextDelta("x"), done("x")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "/lookup on")
        await ask(pilot, "hi")
        assert "lookup is not possible here" in screen_lines(pilot.app)

    chat(backend, steps, size=(140, 24))
    assert backend.requests[0].speculation is not None


def test_the_end_is_followed_until_the_reader_scrolls_and_again_at_end(chat):
    gate, more = Gate(), Gate()
    lines = "".join(f"line {n}\n\n" for n in range(40))
    tail = [TextDelta("tail one\n\n"), more, TextDelta("tail two")]
    backend = ScriptedBackend([TextDelta(lines), gate, *tail, done(lines)])

    async def steps(pilot):
        transcript = pilot.app.query_one(Transcript)
        await ready(pilot)
        await say(pilot, "count")
        await until(pilot, lambda: "line 39" in screen_lines(pilot.app))
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        place = transcript.scroll_y
        gate.opened.set()
        await until(pilot, lambda: "tail one" in pilot.app.session.answer.text)
        await pilot.pause(0.1)
        assert transcript.scroll_y == place
        await pilot.press("end")
        more.opened.set()
        await settled(pilot)
        assert transcript.scroll_y == transcript.max_scroll_y

    chat(backend, steps)


def test_a_paste_of_many_lines_is_one_message(chat):
    from textual import events

    pasted = "\n".join(f"line {n}" for n in range(5000))

    async def steps(pilot):
        await ready(pilot)
        pilot.app.post_message(events.Paste(pasted))
        await until(pilot, lambda: pilot.app.prompt.text)
        assert texts(pilot.app) == []
        await pilot.press("enter")
        await settled(pilot)
        await until(pilot, lambda: len(texts(pilot.app)) == 2)
        assert texts(pilot.app)[0] == pasted

    chat(ScriptedBackend(), steps)


def test_text_of_user_and_model_cannot_steer_the_terminal_or_the_markup(chat):
    backend = ScriptedBackend("answer \x1b]0;title\x07 [red]x[/red]")

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "[bold]hi[/bold] \x1b[31m")
        shown = screen_lines(pilot.app)
        assert "[bold]hi[/bold] ␛[31m" in shown
        assert "\x1b" not in shown
        assert "[red]x[/red]" in shown

    chat(backend, steps)


def test_leaving_keeps_a_half_written_answer_and_exits_0(chat):
    gate = Gate()

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: "Half" in screen_lines(pilot.app))
        await pilot.press("ctrl+q")
        gate.opened.set()

    app = chat(ScriptedBackend([TextDelta("Half", tokens=1), gate, done("never")]), steps)
    assert app.return_code == 0
    assert chat_in_file(app).last_answer.text == "Half"
