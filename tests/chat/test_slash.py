"""Commands typed into a chat: each does what help says, an unknown one sends nothing."""

from dataclasses import replace

import pytest

from engine.errors import InvalidParams
from mlxcel_cli.answers import Piece
from mlxcel_cli.chat.slash import (
    COMMANDS,
    Desk,
    Then,
    complete_command,
    help_lines,
    is_command,
    run_command,
)


@pytest.fixture
def desk(session, store):
    return Desk(session, store)


def answered(session, text: str = "hi") -> None:
    session.ask(text)
    session.request()
    session.take(Piece("Hel", tokens=1))
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


def test_an_unknown_command_is_refused_and_nothing_is_sent(desk):
    with pytest.raises(InvalidParams, match="Nothing was sent"):
        run_command(desk, "/nonsense")
    assert desk.session.chat.messages == ()


def test_help_names_every_command(desk):
    assert len(help_lines()) == len(COMMANDS)
    assert all(name in run_command(desk, "/help").text for name in COMMANDS)
    assert run_command(desk, "/?") == run_command(desk, "/help")


def test_commands_are_completed():
    assert complete_command("/s") == ["/system", "/set", "/stats", "/save"]


@pytest.mark.parametrize("name", ["/bye", "/quit", "/exit"])
def test_leaving(desk, name):
    assert run_command(desk, name).then is Then.QUIT


def test_clear_starts_a_chat_and_keeps_the_old_one(desk, store):
    answered(desk.session)
    old = desk.session.chat.id
    assert run_command(desk, "/clear").then is Then.REDRAW
    assert desk.session.chat.id != old
    assert len(store.load(old).messages) == 2


def test_system_is_shown_set_and_removed(desk):
    assert run_command(desk, "/system").text == "There is no system text."
    run_command(desk, "/system Be short.")
    assert run_command(desk, "/system").text == "Be short."
    run_command(desk, "/system none")
    assert desk.session.knobs.system == ""


def test_model_is_told_or_loaded(desk):
    assert run_command(desk, "/model").text == "tiny (tiny)"
    reply = run_command(desk, "/model other")
    assert (reply.text, reply.then) == ("other", Then.LOAD_MODEL)


def test_set_tells_and_turns(desk):
    assert "temperature = 0.7" in run_command(desk, "/set").text
    assert run_command(desk, "/set temperature 0.2").text == "temperature = 0.2"
    assert run_command(desk, "/set temperature=0.3").text == "temperature = 0.3"


def test_a_chat_is_written_to_a_file_and_loaded_from_it_or_by_its_id(desk, tmp_path):
    answered(desk.session)
    chat = desk.session.chat
    assert chat.id in run_command(desk, "/save").text
    run_command(desk, f"/save {tmp_path / 'a.json'}")
    run_command(desk, "/clear")
    assert run_command(desk, f"/load {tmp_path / 'a.json'}").then is Then.REDRAW
    assert [one.text for one in desk.session.chat.messages] == ["hi", "Hel"]
    run_command(desk, f"/load {chat.id}")
    assert desk.session.chat == chat


def test_chats_are_listed_renamed_and_deleted(desk, store):
    answered(desk.session, "about bees")
    chat_id = desk.session.chat.id
    run_command(desk, "/rename about whales")
    assert "about whales" in run_command(desk, "/chats bees").text
    assert run_command(desk, "/chats wasps").text == "No saved chats."
    assert run_command(desk, f"/delete {chat_id}").then is Then.REDRAW
    assert store.chats() == []


def test_retry_edit_and_continue(desk):
    answered(desk.session)
    assert run_command(desk, "/retry").then is Then.ANSWER
    assert run_command(desk, "/continue").then is Then.CONTINUE
    reply = run_command(desk, "/edit")
    assert (reply.text, reply.then) == ("hi", Then.EDIT)
    assert desk.session.chat.messages == ()
    for name in ("/retry", "/continue", "/edit"):
        with pytest.raises(InvalidParams):
            run_command(desk, name)


def test_switches_turn_or_say_why_not(desk):
    assert run_command(desk, "/lookup").text == "Prompt lookup is on."
    assert run_command(desk, "/lookup off").text == "Prompt lookup is off."
    with pytest.raises(InvalidParams, match="no switch"):
        run_command(desk, "/thinking off")
    desk.session.model = replace(desk.session.model, can_switch_thinking=True)
    assert run_command(desk, "/thinking off").text == "Thinking is off."
    with pytest.raises(InvalidParams, match="on or off"):
        run_command(desk, "/thinking maybe")
    with pytest.raises(InvalidParams, match="server"):
        run_command(replace(desk, is_remote=True), "/lookup on")


def test_images_are_refused(desk):
    with pytest.raises(InvalidParams, match="only text"):
        run_command(desk, "/image a.png")


def test_stats_have_a_line_for_each_answer(desk):
    assert run_command(desk, "/stats").text == "No answers yet."
    answered(desk.session)
    assert len(run_command(desk, "/stats").text.splitlines()) == 2


@pytest.mark.parametrize("text", ["/load", "/load nothing", "/rename", "/delete", "/delete x"])
def test_what_cannot_be_done_says_so(desk, text):
    with pytest.raises(InvalidParams):
        run_command(desk, text)


@pytest.mark.parametrize("text", ["/save", "/load x", "/chats", "/delete x"])
def test_without_saving_the_saved_chats_are_out_of_reach(desk, text):
    with pytest.raises(InvalidParams):
        run_command(replace(desk, store=None), text)


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
def test_a_path_that_cannot_be_read_or_written_is_refused(desk, tmp_path, text, said):
    (tmp_path / "latin1.json").write_bytes(b'[{"role": "user", "content": "\xe9"}]')
    answered(desk.session)
    with pytest.raises(InvalidParams, match=said):
        run_command(desk, text.format(tmp_path))


def test_half_a_surrogate_pair_in_a_file_is_saved_and_written(desk, store, tmp_path):
    (tmp_path / "half.json").write_text('[{"role": "user", "content": "\\ud83d x"}]')
    run_command(desk, f"/load {tmp_path / 'half.json'}")
    desk.session.ask("more")
    assert store.load(desk.session.chat.id).title == "\ufffd x"
    for name in ("out.md", "out.json"):
        run_command(desk, f"/save {tmp_path / name}")
        assert "\ufffd x" in (tmp_path / name).read_text(encoding="utf-8")
