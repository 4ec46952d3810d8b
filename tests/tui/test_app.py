"""The chat around its turns: saved chats, files, commands, keys, questions, themes."""

from functools import partial
from pathlib import Path

import pytest

from engine.errors import InvalidParams
from engine.text.answer_text import TextDelta
from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage
from mlxcel_cli.tui.dialogs import AskText, Choose, Help
from mlxcel_cli.tui.keys import ALL_KEYS, key_names, keymap
from mlxcel_cli.tui.transcript import MOST_TURNS, SPARE_TURNS, UserTurn
from tests.tui.rigs import (
    ScriptedBackend,
    ask,
    done,
    notices,
    ready,
    say,
    screen_lines,
    settled,
    start_of,
    texts,
    until,
)


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
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, Choose))
        assert "about bees" in screen_lines(pilot.app)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: pilot.app.command_context.store.chats() == [])
        await pilot.pause()
        assert "about bees" not in screen_lines(pilot.app)
        await pilot.press("escape")

    chat(ScriptedBackend(), steps)


def test_resuming_shows_the_chat_and_continues_with_it(chat):
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
    assert (
        chat(ScriptedBackend(), nothing, continue_newest=True).session.chat == before.session.chat
    )
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


def test_a_file_that_cannot_be_attached_is_reported_and_nothing_sent(chat, tmp_path):
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


def test_the_keys_of_dialogs_are_changed_too_and_shown_as_they_are(chat, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[keys]\ndialog-close = "f4"\ndialog-delete = "f8"\n')

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "about bees")
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, Choose))
        await until(pilot, lambda: "F8 deletes it, F4 leaves" in screen_lines(pilot.app))
        await pilot.press("f8")
        await until(pilot, lambda: texts(pilot.app) == [])
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, Choose)
        await pilot.press("f4")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Choose))

    chat(ScriptedBackend(), steps, config=config)


@pytest.mark.parametrize("name", [one.id for one in ALL_KEYS if "." not in one.id])
def test_every_key_is_changed_by_its_id_and_explained(name):
    assert keymap({name: "f12"})[name] == "f12"
    assert ("F12", next(one.description for one in ALL_KEYS if one.id == name)) in key_names(
        {name: "f12"}
    )
    page = (Path(__file__).parents[2] / "docs" / "chat.md").read_text(encoding="utf-8")
    ids = {one for line in page.splitlines() if line.startswith("| ")
           for one in line.split("|")[-2].strip().split(", ")}  # fmt: skip
    assert name in ids


def test_a_dialog_may_have_a_key_that_the_chat_has_but_not_two_of_one_key():
    assert keymap({"dialog-delete": "ctrl+o"})
    with pytest.raises(InvalidParams, match="is the key of"):
        keymap({"dialog-delete": "down"})


def test_no_key_that_help_shows_does_nothing():
    bound = [one for one in ALL_KEYS if one.id]
    assert len({one.id for one in bound}) == len(bound)
    from mlxcel_cli.tui.app import ChatApp
    from mlxcel_cli.tui.prompt import PromptArea

    for one in bound:
        owners = (ChatApp, PromptArea, Choose)
        name = f"action_{one.action.removeprefix('app.').split('(')[0]}"
        assert any(hasattr(owner, name) for owner in owners), one.id
    assert all(one.id for one in ALL_KEYS)


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


def test_a_theme_keeps_the_code_on_the_screen_and_is_saved(chat):
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


@pytest.fixture
def long_chat(environ) -> str:
    """The id of a saved chat of 100 questions."""
    store = start_of(environ).store
    value = Chat(store.new_id())
    for number in range(100):
        value = value.asked(f"question {number}").answered(ChatMessage(ASSISTANT, f"a{number}"))
    return store.save(value).id


def test_only_the_newest_turns_have_widgets_and_a_key_brings_the_others(chat, long_chat):
    async def steps(pilot):
        await ready(pilot)
        assert len(pilot.app.query(UserTurn)) == MOST_TURNS // 2
        await pilot.press("ctrl+b")
        await until(pilot, lambda: len(pilot.app.query(UserTurn)) == MOST_TURNS)

    chat(ScriptedBackend(), steps, long_chat, resume=True)


def test_scrolling_to_the_top_brings_earlier_turns_and_keeps_in_view_what_is_there(chat, long_chat):
    async def steps(pilot):
        await ready(pilot)
        await pilot.pause(0.1)
        transcript = pilot.app.conversation.transcript
        newest = 100 - MOST_TURNS // 2
        for _ in range(3):
            transcript.scroll_page_up(animate=False)
            await pilot.pause(0.05)
        await until(pilot, lambda: len(pilot.app.query(UserTurn)) == MOST_TURNS)
        await until(pilot, lambda: f"question {newest}" in screen_lines(pilot.app))
        assert "question 99" not in screen_lines(pilot.app)

    chat(ScriptedBackend(), steps, long_chat, resume=True)


def test_the_oldest_turns_lose_their_widgets_as_the_chat_continues(chat):
    async def steps(pilot):
        await ready(pilot)
        for number in range((MOST_TURNS + SPARE_TURNS) // 2 + 1):
            await ask(pilot, f"question {number}")
        assert len(pilot.app.query("UserTurn, AnswerTurn")) <= MOST_TURNS + SPARE_TURNS
        assert "question 0" not in screen_lines(pilot.app)
        await pilot.press("ctrl+b")
        await pilot.pause(0.1)
        assert "question 0" in screen_lines(pilot.app)
        turns = [one.message.text for one in pilot.app.query("UserTurn, AnswerTurn")]
        assert turns == texts(pilot.app)

    chat(ScriptedBackend(), steps)


def test_the_palette_s_questions_become_commands(chat, tmp_path):
    async def steps(pilot):
        app = pilot.app
        await ready(pilot)
        await ask(pilot, "hi")
        for question, typed in (
            (partial(app.action_ask, "rename"), "bees"),
            (partial(app.action_ask, "system"), "Be short."),
            (partial(app.action_ask, "export"), str(tmp_path / "out.md")),
            (partial(app.action_ask, "setting"), "top-k 3"),
        ):
            question()
            await until(pilot, lambda: isinstance(app.screen, AskText))
            app.screen.query_one("Input").value = typed
            await pilot.press("enter")
            await until(pilot, lambda: not isinstance(app.screen, AskText))
        await pilot.pause()
        assert (app.session.chat.title, app.session.chat.system) == ("bees", "Be short.")
        assert (tmp_path / "out.md").exists()
        assert app.session.settings.sampling.top_k == 3

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
        await offers["Copy code block 1"].callback()
        assert app.clipboard == "x = 1"

    chat(ScriptedBackend("```\nx = 1\n```"), steps)


def test_a_server_s_chat_offers_nothing_that_only_a_local_model_can(chat):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "hi")
        assert "cut at 21 tokens" in screen_lines(pilot.app)
        assert "to continue" not in screen_lines(pilot.app)
        titles = {one.title for one in pilot.app.get_system_commands(pilot.app.screen)}
        assert not {title for title in titles if title.startswith(("Prompt lookup", "Continue"))}

    backend = ScriptedBackend([TextDelta("x"), done("x", finish="length")])
    chat(backend, steps, url="http://localhost:8080/v1")
