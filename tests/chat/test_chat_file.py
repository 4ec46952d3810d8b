"""Chats as files: what is written is read back, what is no chat is refused by its place."""

import json

import pytest

from engine.errors import InvalidParams
from mlxcel_cli.chat.chat_file import export, from_messages, to_json, to_markdown
from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage

CHAT = (
    Chat("aa", system="Be short.", model="tiny")
    .asked("What is 1 + 1?")
    .answered(ChatMessage(ASSISTANT, "**2**\n", finish="eos"))
)


def test_markdown_is_for_people():
    assert to_markdown(CHAT) == (
        "# What is 1 + 1?\n\n*tiny*\n\n## System\n\nBe short.\n\n"
        "## You\n\nWhat is 1 + 1?\n\n## Assistant\n\n**2**\n"
    )


def test_json_is_an_openai_shaped_conversation_that_comes_back():
    assert [one["role"] for one in json.loads(to_json(CHAT))["messages"]] == [
        "system", "user", "assistant",
    ]  # fmt: skip
    back = from_messages(to_json(CHAT), "bb")
    assert (back.id, back.system) == ("bb", "Be short.")
    assert [one.text for one in back.messages] == [one.text for one in CHAT.messages]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("not json", "is not JSON"),
        ('[{"role": "tool", "content": "x"}]', r"messages\[0\]\.role"),
        ('[{"role": "user"}]', r"messages\[0\]\.content"),
        ("[]", "is empty"),
    ],
)
def test_what_is_no_chat_is_refused_by_its_place(text, place):
    with pytest.raises(InvalidParams, match=place):
        from_messages(text, "aa")


def test_a_file_s_name_chooses_its_form_and_no_file_is_overwritten(tmp_path):
    assert export(CHAT, tmp_path / "a.json").read_text() == to_json(CHAT)
    assert export(CHAT, tmp_path / "a.md").read_text() == to_markdown(CHAT)
    with pytest.raises(InvalidParams, match="exists already"):
        export(Chat("bb"), tmp_path / "a.md")
    assert (tmp_path / "a.md").read_text() == to_markdown(CHAT)
