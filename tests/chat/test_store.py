"""Saved chats survive: crashes, other programs, newer formats, damaged files."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.errors import InvalidParams
from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage, Numbers
from mlxcel_cli.chat.store import ChatsBusy, ChatStore, ChatsUnusable
from tests.chat.locks import held_elsewhere

ROOT = Path(__file__).parents[2]

ANSWER = ChatMessage(ASSISTANT, "yes 🙂", "hm", "eos", Numbers(4, 3, 2, 0.5, 20.0, 7, 5, 1, 9))

WRITER = """
import os, sys
from pathlib import Path
from mlxcel_cli.chat.messages import Chat
from mlxcel_cli.chat.store import ChatStore
store = ChatStore(Path(sys.argv[1]))
chat = Chat(store.new_id()) if sys.argv[2] == "new" else store.load(sys.argv[2])
for turn in range(int(sys.argv[3])):
    chat = store.save(chat.asked(f"{os.getpid()} {turn}"))
print(chat.id, flush=True)
os._exit(1)
"""


def write_elsewhere(store: ChatStore, chat: str, turns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.path), chat, str(turns)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_chat_comes_back_as_it_was(store):
    chat = store.save(Chat(store.new_id(), system="s", model="m").asked("a", "b").answered(ANSWER))
    assert ChatStore(store.path).load(chat.id) == chat


def test_every_change_is_there_when_save_returns(store):
    chat = store.save(Chat("aa").asked("a").answered(ANSWER).asked("b"))
    chat = store.save(chat.without_last_turn())
    assert ChatStore(store.path).load("aa") == chat
    chat = store.save(chat.without_last_turn().asked("c"))
    assert ChatStore(store.path).load("aa") == chat


def test_a_program_that_dies_leaves_what_it_saved(store):
    writer = write_elsewhere(store, "new", 3)
    chat_id = writer.communicate(timeout=60)[0].strip()
    assert len(store.load(chat_id).messages) == 3


def test_two_programs_that_start_at_once_share_one_file(store):
    writers = [write_elsewhere(store, "new", 20) for _ in range(3)]
    ids = {writer.communicate(timeout=60)[0].strip() for writer in writers}
    assert {len(store.load(one).messages) for one in ids} == {20}
    assert len(ids) == 3


def test_two_programs_in_one_chat_part_ways_and_never_mix(store):
    chat = store.save(Chat("aa").asked("start"))
    other = ChatStore(store.path)
    theirs = other.save(other.load("aa").asked("theirs"))
    mine = store.save(chat.asked("mine"))
    assert theirs.id == "aa" != mine.id
    assert [one.text for one in other.load("aa").messages] == ["start", "theirs"]
    assert [one.text for one in other.load(mine.id).messages] == ["start", "mine"]
    assert store.save(mine.asked("more")).id == mine.id


def test_a_chat_that_was_deleted_elsewhere_is_saved_anew(store):
    chat = store.save(Chat("aa").asked("a"))
    ChatStore(store.path).delete("aa")
    kept = store.save(chat.asked("b"))
    assert len(ChatStore(store.path).load(kept.id).messages) == 2


def test_the_list_is_newest_first_and_searched_in_titles_and_texts(store, clock):
    for number, text in enumerate(["about bees", "about whales", "nothing"]):
        clock.now_s = number
        store.save(Chat(f"{number}{number}").asked(text).answered(ANSWER))
    assert [one.id for one in store.chats()] == ["22", "11", "00"]
    assert [one.id for one in store.chats("WHALES")] == ["11"]
    assert len(store.chats("yes 🙂")) == 3
    assert store.chats("%") == []
    assert store.newest().id == "22"
    assert store.chats()[0].messages == 2


def test_a_chat_is_found_by_the_beginning_of_its_id(store):
    store.save(Chat("abcd").asked("a"))
    store.save(Chat("abef").asked("a"))
    assert store.load("abc").id == "abcd"
    for wrong, said in (("ab", "several"), ("x", "no saved chat"), ("", "no saved chat")):
        with pytest.raises(InvalidParams, match=said):
            store.load(wrong)


def test_deleting_takes_the_messages_along(store):
    store.save(Chat("aa").asked("a"))
    store.delete("aa")
    store.delete("aa")
    with sqlite3.connect(store.path) as file:
        assert file.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    file.close()
    assert store.newest() is None


def test_no_file_is_made_by_looking(store):
    assert store.chats() == []
    assert store.newest() is None
    assert not store.path.exists()


def test_a_newer_program_s_file_is_refused_and_unchanged(store):
    store.save(Chat("aa").asked("a"))
    file = sqlite3.connect(store.path)
    file.execute("PRAGMA user_version = 2")
    file.close()
    with pytest.raises(ChatsUnusable, match="newer mlxcel"):
        ChatStore(store.path).load("aa")


def test_a_damaged_file_is_an_error_that_names_it(store):
    store.path.parent.mkdir()
    store.path.write_bytes(b"not a database, not at all" * 50)
    with pytest.raises(ChatsUnusable, match="chats"):
        store.save(Chat("aa").asked("a"))


def test_a_write_that_fails_leaves_the_chat_as_it_was(store, monkeypatch):
    chat = store.save(Chat("aa").asked("a").answered(ANSWER))
    monkeypatch.setattr("mlxcel_cli.chat.store._to_json", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.save(chat.asked("b"))
    assert ChatStore(store.path).load("aa") == chat


def test_only_the_owner_may_read_them(store):
    store.save(Chat("aa").asked("a"))
    assert store.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"numbers": {}}', "x" * 9, "null"])
def test_a_damaged_message_is_an_error_that_names_the_chat(store, content):
    chat = store.save(Chat(store.new_id()).asked("hi"))
    with sqlite3.connect(store.path) as file:
        file.execute("UPDATE messages SET content = ?", (content,))
    with pytest.raises(ChatsUnusable, match=f"holds chat {chat.id} damaged"):
        store.load(chat.id)


def test_what_has_no_utf8_is_kept_as_replacement_characters(store):
    chat = store.save(Chat(store.new_id(), system="\ud800").asked("a \udc80"))
    again = ChatStore(store.path).load(chat.id)
    assert (again.title, again.system, again.messages[0].text) == ("a \ufffd", "\ufffd", "a \ufffd")
    assert [one.id for one in store.chats("\ud800")] == [chat.id]
    with pytest.raises(InvalidParams):
        store.load("\udc80")


def test_a_file_that_another_program_holds_is_reported_at_once_where_keys_wait(store):
    store.save(Chat("aa").asked("a"))
    store.wait_s = 0.0
    with held_elsewhere(store.path):
        for call in (
            lambda: store.save(Chat("aa").asked("b")),
            lambda: store.load("aa"),
            store.chats,
            lambda: store.delete("aa"),
        ):
            with pytest.raises(ChatsBusy, match="held by another program"):
                call()
    assert store.save(Chat("aa").asked("b")) == ChatStore(store.path).load("aa")


def test_a_file_that_is_held_before_it_has_tables_is_reported_too(store):
    store.wait_s = 0.0
    with held_elsewhere(store.path), pytest.raises(ChatsBusy):
        store.save(Chat("aa").asked("a"))
    assert store.save(Chat("aa").asked("a")) == store.load("aa")


def test_chats_are_read_with_another_program_that_is_about_to_write(store):
    store.save(Chat("aa").asked("a"))
    store.wait_s = 0.0
    with held_elsewhere(store.path, "BEGIN IMMEDIATE"):
        assert [one.id for one in store.chats()] == ["aa"]
        assert store.load("aa").last_asked == "a"


def test_a_call_that_may_wait_continues_once_the_file_is_free(store):
    store.save(Chat("aa").asked("a"))
    with ExitStack() as holding:
        holding.enter_context(held_elsewhere(store.path))
        freed = threading.Timer(0.3, holding.pop_all().close)
        freed.start()
        assert store.load("aa").last_asked == "a"
        freed.join()
