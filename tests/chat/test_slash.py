"""Commands typed into a chat: each does what help says, an unknown one sends nothing."""

from dataclasses import replace

import pytest

from engine.errors import InvalidParams
from engine.text.answer_text import TextDelta
from mlxcel_cli.chat.slash import (
    COMMANDS,
    CommandContext,
    FollowUp,
    completed,
    completions,
    help_lines,
    is_command,
    run_command,
)


@pytest.fixture
def context(session, store):
    return CommandContext(session, store)


def answered(session, text: str = "hi") -> None:
    session.ask(text)
    session.request()
    session.take(TextDelta("Hel", tokens=1))
    session.stop()


@pytest.mark.parametrize(
    ("text", "whether"),
    [
        ("/help", True),
        ("/?", True),
        ("/nonsense", True),
        ("/set temperature 0.5", True),
        ("/usr/bin is a path", True),
        ("/ alone", True),
        ("// comment", True),
        (" /usr/bin is a path", False),
        ("/help\nand more", False),
        ("hi", False),
        ("", False),
    ],
)
def test_what_is_a_command(text, whether):
    assert is_command(text) == whether


def test_an_unknown_command_is_refused_and_nothing_is_sent(context):
    with pytest.raises(InvalidParams, match="Nothing was sent"):
        run_command(context, "/nonsense")
    assert context.session.chat.messages == ()


def test_help_names_every_command(context):
    assert len(help_lines()) == len(COMMANDS)
    assert all(name in run_command(context, "/help").text for name in COMMANDS)
    assert run_command(context, "/?") == run_command(context, "/help")


def test_commands_are_completed():
    assert completions("/s") == ("/s", ["/system", "/set", "/stats", "/save"])


@pytest.mark.parametrize("name", ["/bye", "/quit", "/exit"])
def test_leaving(context, name):
    assert run_command(context, name).follow_up is FollowUp.QUIT


def test_clear_starts_a_chat_and_keeps_the_old_one(context, store):
    answered(context.session)
    old = context.session.chat.id
    assert run_command(context, "/clear").follow_up is FollowUp.REDRAW
    assert context.session.chat.id != old
    assert len(store.load(old).messages) == 2


def test_system_is_shown_set_and_removed(context):
    assert run_command(context, "/system").text == "There is no system text."
    run_command(context, "/system Be short.")
    assert run_command(context, "/system").text == "Be short."
    run_command(context, "/system none")
    assert context.session.settings.system == ""


def test_model_is_shown_or_loaded(context):
    assert run_command(context, "/model").text == "tiny (tiny)"
    reply = run_command(context, "/model other")
    assert (reply.text, reply.follow_up) == ("other", FollowUp.LOAD_MODEL)


def test_set_shows_and_changes(context):
    assert "temperature = 0.7" in run_command(context, "/set").text
    assert run_command(context, "/set temperature 0.2").text == "temperature = 0.2"
    assert run_command(context, "/set temperature=0.3").text == "temperature = 0.3"


def test_a_chat_is_written_to_a_file_and_loaded_from_it_or_by_its_id(context, tmp_path):
    answered(context.session)
    chat = context.session.chat
    assert chat.id in run_command(context, "/save").text
    run_command(context, f"/save {tmp_path / 'a.json'}")
    run_command(context, "/clear")
    assert run_command(context, f"/load {tmp_path / 'a.json'}").follow_up is FollowUp.REDRAW
    assert [one.text for one in context.session.chat.messages] == ["hi", "Hel"]
    run_command(context, f"/load {chat.id}")
    assert context.session.chat == chat


def test_chats_are_listed_renamed_and_deleted(context, store):
    answered(context.session, "about bees")
    chat_id = context.session.chat.id
    run_command(context, "/rename about whales")
    assert "about whales" in run_command(context, "/chats bees").text
    assert run_command(context, "/chats wasps").text == "No saved chats."
    assert run_command(context, f"/delete {chat_id}").follow_up is FollowUp.REDRAW
    assert store.chats() == []


def test_retry_edit_and_continue(context):
    answered(context.session)
    assert run_command(context, "/retry").follow_up is FollowUp.ANSWER
    assert run_command(context, "/continue").follow_up is FollowUp.CONTINUE
    reply = run_command(context, "/edit")
    assert (reply.text, reply.follow_up) == ("hi", FollowUp.EDIT)
    assert context.session.chat.messages == ()
    for name in ("/retry", "/continue", "/edit"):
        with pytest.raises(InvalidParams):
            run_command(context, name)


def test_switches_turn_or_say_why_not(context):
    assert run_command(context, "/lookup").text == "Prompt lookup is on."
    assert run_command(context, "/lookup off").text == "Prompt lookup is off."
    with pytest.raises(InvalidParams, match="no switch"):
        run_command(context, "/thinking off")
    context.session.model = replace(context.session.model, can_switch_thinking=True)
    assert run_command(context, "/thinking off").text == "Thinking is off."
    with pytest.raises(InvalidParams, match="on or off"):
        run_command(context, "/thinking maybe")
    with pytest.raises(InvalidParams, match="server"):
        run_command(replace(context, is_remote=True), "/lookup on")


def test_images_are_refused(context):
    with pytest.raises(InvalidParams, match="only text"):
        run_command(context, "/image a.png")


def test_stats_have_a_line_for_each_answer(context):
    assert run_command(context, "/stats").text == "No answers yet."
    answered(context.session)
    assert len(run_command(context, "/stats").text.splitlines()) == 2


@pytest.mark.parametrize("text", ["/load", "/load nothing", "/rename", "/delete", "/delete x"])
def test_what_cannot_be_done_says_so(context, text):
    with pytest.raises(InvalidParams):
        run_command(context, text)


@pytest.mark.parametrize("text", ["/save", "/load x", "/chats", "/delete x"])
def test_without_saving_the_saved_chats_are_out_of_reach(context, text):
    with pytest.raises(InvalidParams):
        run_command(replace(context, store=None), text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/load {}/latin1.json", "is not UTF-8 text"),
        ("/load {}", "is a folder"),
        ("/load zzzz", "^/load: no saved chat has the id 'zzzz'; /chats lists them"),
        ("/delete zzzz", "^/delete: no saved chat has the id 'zzzz'; /chats lists them"),
        ("/load ~nobody-of-this-name/x", "no home folder"),
        ("/load a\0b", "null byte"),
        ("/save a\0b", "null byte"),
        ("/save ~nobody-of-this-name/x", "no home folder"),
    ],
)
def test_a_path_that_cannot_be_read_or_written_is_refused(context, tmp_path, text, said):
    (tmp_path / "latin1.json").write_bytes(b'[{"role": "user", "content": "\xe9"}]')
    answered(context.session)
    with pytest.raises(InvalidParams, match=said):
        run_command(context, text.format(tmp_path))


def test_half_a_surrogate_pair_in_a_file_is_saved_and_written(context, store, tmp_path):
    (tmp_path / "half.json").write_text('[{"role": "user", "content": "\\ud83d x"}]')
    run_command(context, f"/load {tmp_path / 'half.json'}")
    context.session.ask("more")
    assert store.load(context.session.chat.id).title == "\ufffd x"
    for name in ("out.md", "out.json"):
        run_command(context, f"/save {tmp_path / name}")
        assert "\ufffd x" in (tmp_path / name).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("notes.md", "notebook.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(
    ("before", "added"),
    [
        ("/he", "lp "),
        ("/s", ""),
        ("/re", ""),
        ("see @no", "te"),
        ("see @notes", ".md "),
        ("@fo", "lder/"),
        ("plain", ""),
        ("/set te", ""),
        ("", ""),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_tab_adds_what_all_candidates_share(before, added):
    assert completed(before) == added


@pytest.mark.usefixtures("folder")
def test_candidates_are_listed():
    assert completions("/li") == ("/li", [])
    assert completions("a @note") == ("@note", ["@notebook.py", "@notes.md"])
