"""The chat on the screen, key by key: what is sent, shown, stopped, kept and told."""

import asyncio
from dataclasses import replace

import pytest

from engine.errors import EvalFailed, ModelNotFound
from engine.models.progress import Progress
from mlxcel_cli.answers import LookupRefused, Piece, PromptRead
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.tui.dialogs import AskText, Choose, Help
from mlxcel_cli.tui.keys import CHAT_KEYS, PROMPT_KEYS
from mlxcel_cli.tui.transcript import AnswerTurn, Transcript, UserTurn
from tests.tui.rigs import (
    REPORT,
    Hold,
    ScriptedBackend,
    app_of,
    ask,
    done,
    ready,
    say,
    screen_lines,
    settled,
    start_of,
    until,
)


@pytest.fixture
def chat(environ):
    """Runs ``steps(pilot)`` on an app with a backend; gives the app back."""

    def run(backend, steps, *words, size=(80, 24), is_remote=False, **options):
        async def main():
            app = app_of(start_of(environ, *words, **options), backend, is_remote=is_remote)
            async with app.run_test(size=size) as pilot:
                await steps(pilot)
            return app

        return asyncio.run(main())

    return run


def texts(app) -> list[str]:
    return [message.text for message in app.session.chat.messages]


def notices(app) -> list[str]:
    return [notice.message for notice in app._notifications]


def test_a_message_is_answered_and_both_are_saved(chat):
    async def steps(pilot):
        await ready(pilot)
        await pilot.press(*"hi", "enter")
        await settled(pilot)
        assert texts(pilot.app) == ["hi", "Hello"]
        assert pilot.app.prompt.text == ""

    app = chat(ScriptedBackend("Hello"), steps)
    assert ChatStore(app.store.path).load(app.session.chat.id) == app.session.chat


def test_the_first_screen_is_there_before_a_model_and_typing_too(chat):
    hold = Hold()
    backend = ScriptedBackend("Hello", load=[Progress("loading", 45, 100), hold])

    async def steps(pilot):
        await until(pilot, hold.reached.is_set)
        await until(pilot, lambda: "loading: 45 %" in screen_lines(pilot.app))
        await pilot.press(*"hi", "enter")
        await pilot.pause()
        assert "waiting for the model" in screen_lines(pilot.app)
        assert backend.requests == []
        hold.go_on.set()
        await settled(pilot)
        assert texts(pilot.app) == ["hi", "Hello"]

    chat(backend, steps)


def test_esc_while_it_waits_gives_the_message_back_and_the_load_goes_on(chat):
    hold = Hold()

    async def steps(pilot):
        await until(pilot, hold.reached.is_set)
        await say(pilot, "hi")
        await until(pilot, lambda: pilot.app.flow.waits)
        await pilot.press("escape")
        assert (pilot.app.prompt.text, texts(pilot.app)) == ("hi", [])
        hold.go_on.set()
        await ready(pilot)

    chat(ScriptedBackend(load=[hold]), steps)


def test_ctrl_c_stops_a_load_and_the_app_lives(chat):
    hold = Hold()
    backend = ScriptedBackend("Hello", load=[hold])

    async def steps(pilot):
        await until(pilot, hold.reached.is_set)
        await pilot.press("ctrl+c")
        assert "Loading is stopped" in notices(pilot.app)[-1]
        hold.go_on.set()
        backend.load_script = []
        await say(pilot, "/model other")
        await ready(pilot)
        await ask(pilot, "hi")

    chat(backend, steps)
    assert backend.loads == [None, "other"]


def test_a_model_that_is_not_there_is_told_and_the_message_given_back(chat):
    backend = ScriptedBackend(load=[ModelNotFound("x", "try mlxcel models list")])

    async def steps(pilot):
        await until(pilot, lambda: notices(pilot.app))
        assert "try mlxcel models list" in notices(pilot.app)[-1]
        await say(pilot, "hi")
        await until(pilot, lambda: len(notices(pilot.app)) > 1)
        assert pilot.app.prompt.text == "hi"
        assert "no model" in screen_lines(pilot.app)

    chat(backend, steps)


def test_esc_stops_an_answer_which_stays_and_the_next_turn_goes_on(chat):
    hold = Hold()
    backend = ScriptedBackend([Piece("Once upon", tokens=2), hold, done("never")], "More")

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "tell me")
        await until(pilot, lambda: "Once upon" in screen_lines(pilot.app))
        await pilot.press("escape")
        assert texts(pilot.app) == ["tell me", "Once upon"]
        assert "stopped after 2 tokens" in screen_lines(pilot.app)
        hold.go_on.set()
        await ask(pilot, "and then?")
        assert texts(pilot.app) == ["tell me", "Once upon", "and then?", "More"]

    chat(backend, steps)
    sent = [one["content"] for one in backend.requests[1].prompt.messages]
    assert sent == ["tell me", "Once upon", "and then?"]


def test_ctrl_c_before_the_first_token_keeps_the_question(chat):
    hold = Hold()
    backend = ScriptedBackend([PromptRead(5, 90), hold, done("never")], "Hello")

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: "reading 5 of 90 tokens" in screen_lines(pilot.app))
        await pilot.press("ctrl+c")
        assert "stopped before the first token" in screen_lines(pilot.app)
        hold.go_on.set()
        await pilot.press("ctrl+r")
        await settled(pilot)
        await until(pilot, lambda: texts(pilot.app) == ["hi", "Hello"])

    chat(backend, steps)


def test_ctrl_c_copies_what_is_selected_and_stops_nothing(chat):
    hold = Hold()
    backend = ScriptedBackend([Piece("Once"), hold, done("Once")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: "Once" in screen_lines(pilot.app))
        await pilot.press(*"abc", "shift+home", "ctrl+c")
        assert pilot.app.clipboard == "abc"
        assert pilot.app.session.is_answering
        hold.go_on.set()
        await settled(pilot)

    chat(backend, steps)


def test_an_error_is_told_and_the_prompt_restored(chat):
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
    backend = ScriptedBackend([Piece("Hel", tokens=1), EvalFailed("out of luck")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: notices(pilot.app))
        await pilot.pause()
        assert texts(pilot.app) == ["hi", "Hel"]
        assert "broken off after 1 tokens" in screen_lines(pilot.app)

    chat(backend, steps)


def test_a_message_sent_while_an_answer_is_written_stays_in_the_prompt(chat):
    hold = Hold()

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "one")
        await until(pilot, hold.reached.is_set)
        await say(pilot, "two")
        await until(pilot, lambda: notices(pilot.app))
        assert pilot.app.prompt.text == "two"
        hold.go_on.set()
        await settled(pilot)

    chat(ScriptedBackend([Piece("x"), hold, done("x")]), steps)


def test_an_answer_that_was_cut_says_so_and_goes_on(chat):
    backend = ScriptedBackend(
        [Piece("One two", tokens=2), done("One two", finish="length")],
        [Piece("One two"), Piece(" three", tokens=1), done("One two three")],
    )

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "count")
        assert "cut at 21 tokens — Ctrl+G goes on" in screen_lines(pilot.app)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: texts(pilot.app) == ["count", "One two three"])
        await settled(pilot)
        assert screen_lines(pilot.app).count("One two") == 1

    chat(backend, steps)
    assert backend.requests[1].prompt.prefill == "One two"


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


def test_a_new_chat_keeps_the_old_one_and_the_list_finds_it(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "about bees")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: texts(pilot.app) == [])
        await ask(pilot, "about whales")
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, Choose))
        await pilot.press(*"bees")
        await pilot.pause()
        assert "whales" not in "".join(screen_lines(pilot.app).splitlines()[6:18])
        await pilot.press("enter")
        await until(pilot, lambda: texts(pilot.app) == ["about bees", "ok"])
        await pilot.pause()
        assert "about bees" in screen_lines(pilot.app)

    chat(ScriptedBackend(), steps)


def test_a_chat_is_deleted_from_the_list(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "about bees")
        await pilot.press("ctrl+o", "ctrl+d")
        await until(pilot, lambda: pilot.app.store.chats() == [])
        await pilot.press("escape")

    chat(ScriptedBackend(), steps)


def test_resuming_shows_the_chat_and_goes_on_with_it(chat):
    async def first(pilot):
        await ready(pilot)
        await ask(pilot, "hi")

    async def second(pilot):
        await ready(pilot)
        assert "hi" in screen_lines(pilot.app)
        await ask(pilot, "more")

    before = chat(ScriptedBackend("Hello"), first)
    backend = ScriptedBackend("Yes")
    app = chat(backend, second, before.session.chat.id, resume=True)
    assert texts(app) == ["hi", "Hello", "more", "Yes"]
    assert app.session.chat.id == before.session.chat.id
    assert len(backend.requests[0].prompt.messages) == 3


def test_continue_takes_the_newest_chat_and_resume_alone_asks_which(chat):
    async def first(pilot):
        await ready(pilot)
        await ask(pilot, "hi")

    async def nothing(pilot):
        await ready(pilot)

    async def asked(pilot):
        await until(pilot, lambda: isinstance(pilot.app.screen, Choose))

    before = chat(ScriptedBackend(), first)
    assert chat(ScriptedBackend(), nothing, go_on=True).session.chat == before.session.chat
    chat(ScriptedBackend(), asked, resume=True)


def test_no_save_leaves_no_trace(chat, environ, tmp_path):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "secret")

    chat(ScriptedBackend(), steps, save=False)
    assert not list(tmp_path.rglob("*.sqlite3*"))


def test_a_file_on_the_command_line_is_attached(chat, tmp_path):
    (tmp_path / "main.py").write_text("x = 1\n")
    backend = ScriptedBackend()

    async def steps(pilot):
        await ready(pilot)
        assert pilot.app.prompt.text == f"@{tmp_path / 'main.py'} "
        await pilot.press(*"go", "enter")
        await settled(pilot)
        await until(pilot, lambda: backend.requests)
        assert "x = 1" not in screen_lines(pilot.app)

    chat(backend, steps, str(tmp_path / "main.py"), size=(120, 24))
    assert backend.requests[0].prompt.messages[0]["content"].endswith("```py\nx = 1\n```")


def test_a_file_that_cannot_be_attached_is_told_and_nothing_sent(chat, tmp_path):
    (tmp_path / "bad.bin").write_bytes(b"\xff\xff")
    text = f"read @{tmp_path / 'bad.bin'}"

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, text)
        await until(pilot, lambda: notices(pilot.app))
        assert (pilot.app.prompt.text, texts(pilot.app)) == (text, [])

    chat(ScriptedBackend(), steps)


def test_tab_completes_commands_and_paths_and_shows_the_candidates(chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")

    async def steps(pilot):
        await ready(pilot)
        await pilot.press("/", "s")
        await pilot.pause()
        assert "/system  /set  /stats  /save" in screen_lines(pilot.app)
        await pilot.press("y", "tab")
        assert pilot.app.prompt.text == "/system "
        pilot.app.prompt.fill("see @no")
        await pilot.press("tab")
        assert pilot.app.prompt.text == "see @notes.txt "

    chat(ScriptedBackend(), steps)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nonsense", "Nothing was sent"),
        ("/image a.png", "only text"),
        ("/set temperature -1", "temperature"),
        ("/set temperature 0.3", "temperature = 0.3"),
        ("/lookup on", "Prompt lookup is on."),
        ("/continue", "not cut off"),
        ("/model", "tiny-chat"),
    ],
)
def test_commands_are_obeyed_or_refused_and_nothing_is_sent(chat, command, said):
    backend = ScriptedBackend()

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, command)
        await until(pilot, lambda: notices(pilot.app))
        assert said in notices(pilot.app)[-1]

    chat(backend, steps)
    assert backend.requests == []


def test_help_lists_keys_and_commands_and_its_key_closes_it(chat):
    async def steps(pilot):
        await ready(pilot)
        for opens in (["f1"], [*"/help", "enter"]):
            await pilot.press(*opens)
            await until(pilot, lambda: isinstance(pilot.app.screen, Help))
            await pilot.press("f1")
            await until(pilot, lambda: not isinstance(pilot.app.screen, Help))

    chat(ScriptedBackend(), steps)


def test_no_key_that_help_shows_does_nothing():
    bound = [one for one in (*CHAT_KEYS, *PROMPT_KEYS) if one.id]
    assert len({one.id for one in bound}) == len(bound)
    from mlxcel_cli.tui.app import ChatApp
    from mlxcel_cli.tui.prompt import Prompt

    for one in bound:
        owners = (ChatApp, Prompt)
        name = f"action_{one.action.removeprefix('app.')}"
        assert any(hasattr(owner, name) for owner in owners), one.id
    assert all(one.id for one in (*CHAT_KEYS, *PROMPT_KEYS))


@pytest.mark.parametrize(
    "key", ["escape", "ctrl+c", "ctrl+r", "ctrl+g", "ctrl+t", "ctrl+b", "up", "f2"]
)
def test_a_key_with_nothing_to_do_says_so(chat, key):
    async def steps(pilot):
        await ready(pilot)
        before = screen_lines(pilot.app)
        await pilot.press(key)
        await until(pilot, lambda: notices(pilot.app) or screen_lines(pilot.app) != before)

    chat(ScriptedBackend(), steps)


def test_keys_are_changed_in_the_options_file(chat, environ, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[keys]\nnew-chat = "f9"\nsend = "ctrl+s"\n')

    async def steps(pilot):
        await ready(pilot)
        await pilot.press(*"hi", "ctrl+s")
        await settled(pilot)
        await until(pilot, lambda: texts(pilot.app) == ["hi", "ok"])
        await pilot.press("ctrl+n")
        assert len(texts(pilot.app)) == 2
        await pilot.press("f9")
        await until(pilot, lambda: texts(pilot.app) == [])
        assert "Ctrl+S sends" in screen_lines(pilot.app)

    chat(ScriptedBackend(), steps, config=config)


def test_thinking_is_folded_with_its_count_and_opens(chat):
    backend = ScriptedBackend(
        [Piece("Let me see.", is_reasoning=True, tokens=4), Piece("42", tokens=5), done("42")]
    )

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
    backend = ScriptedBackend([LookupRefused("is not possible here"), Piece("x"), done("x")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "/lookup on")
        await ask(pilot, "hi")
        assert "lookup is not possible here" in screen_lines(pilot.app)

    chat(backend, steps, size=(140, 24))
    assert backend.requests[0].speculation is not None


def test_the_end_is_followed_until_the_reader_scrolls_and_again_at_end(chat):
    hold, more = Hold(), Hold()
    lines = "".join(f"line {n}\n\n" for n in range(40))
    backend = ScriptedBackend(
        [Piece(lines), hold, Piece("tail one\n\n"), more, Piece("tail two"), done(lines)]
    )

    async def steps(pilot):
        transcript = pilot.app.query_one(Transcript)
        await ready(pilot)
        await say(pilot, "count")
        await until(pilot, lambda: "line 39" in screen_lines(pilot.app))
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        place = transcript.scroll_y
        hold.go_on.set()
        await until(pilot, lambda: "tail one" in pilot.app.session.answer.text)
        await pilot.pause(0.1)
        assert transcript.scroll_y == place
        await pilot.press("end")
        more.go_on.set()
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


def test_a_theme_keeps_the_code_on_the_screen_and_is_remembered(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "code")
        pilot.app.theme = "textual-light"
        await pilot.pause(0.1)
        assert "x = 1" in screen_lines(pilot.app)

    async def later(pilot):
        assert pilot.app.theme == "textual-light"

    chat(ScriptedBackend("```python\nx = 1\n```"), steps)
    chat(ScriptedBackend(), later)


def test_only_the_newest_turns_have_widgets_and_a_key_brings_the_others(chat, environ):
    start = start_of(environ)
    value = start.session.chat
    from mlxcel_cli.chat.messages import ASSISTANT, ChatMessage

    for number in range(100):
        value = value.asked(f"question {number}").answered(ChatMessage(ASSISTANT, f"a{number}"))
    chat_id = start.store.save(value).id

    async def steps(pilot):
        await ready(pilot)
        assert len(pilot.app.query(UserTurn)) == 30
        await pilot.press("ctrl+b")
        await until(pilot, lambda: len(pilot.app.query(UserTurn)) == 60)

    chat(ScriptedBackend(), steps, chat_id, resume=True)


def test_leaving_keeps_a_half_written_answer_and_exits_0(chat):
    hold = Hold()

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "hi")
        await until(pilot, lambda: "Half" in screen_lines(pilot.app))
        await pilot.press("ctrl+q")
        hold.go_on.set()

    app = chat(ScriptedBackend([Piece("Half", tokens=1), hold, done("never")]), steps)
    assert app.return_code == 0
    assert ChatStore(app.store.path).load(app.session.chat.id).last_answer.text == "Half"


def test_the_palette_s_questions_become_commands(chat, tmp_path):
    async def steps(pilot):
        app = pilot.app
        await ready(pilot)
        await ask(pilot, "hi")
        for question, typed in (
            (app.questions.rename, "bees"),
            (app.questions.system, "Be short."),
            (app.questions.export, str(tmp_path / "out.md")),
            (app.questions.setting, "top-k 3"),
        ):
            question()
            await until(pilot, lambda: isinstance(app.screen, AskText))
            app.screen.query_one("Input").value = typed
            await pilot.press("enter")
            await until(pilot, lambda: not isinstance(app.screen, AskText))
        await pilot.pause()
        assert (app.session.chat.title, app.session.chat.system) == ("bees", "Be short.")
        assert (tmp_path / "out.md").exists()
        assert app.session.knobs.sampling.top_k == 3

    chat(ScriptedBackend(), steps)


def test_the_palette_offers_what_can_be_done_now(chat):
    async def steps(pilot):
        app = pilot.app
        await ready(pilot)
        titles = {one.title for one in app.get_system_commands(app.screen)}
        assert {"New chat", "Resume chat", "Switch model", "Theme", "Sampling"} <= titles
        assert "Copy answer" not in titles
        await ask(pilot, "hi")
        offers = {one.title: one for one in app.get_system_commands(app.screen)}
        offers["Copy code block 1"].callback()
        assert app.clipboard == "x = 1"

    chat(ScriptedBackend("```\nx = 1\n```"), steps)


def test_a_server_s_chat_offers_nothing_that_only_a_local_model_can(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "hi")
        assert "cut at 21 tokens" in screen_lines(pilot.app)
        assert "goes on" not in screen_lines(pilot.app)
        titles = {one.title for one in pilot.app.get_system_commands(pilot.app.screen)}
        assert not {title for title in titles if title.startswith(("Prompt lookup", "Go on"))}

    backend = ScriptedBackend([Piece("x"), done("x", finish="length")])
    chat(backend, steps, is_remote=True)
