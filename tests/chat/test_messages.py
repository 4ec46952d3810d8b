"""A chat is a value: a question, an answer or an edit makes another."""

import pytest

from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage, Numbers, code_blocks, title_of


def answer(text: str, **values) -> ChatMessage:
    return ChatMessage(ASSISTANT, text, **values)


def contents(chat: Chat) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in chat.for_model()]


def test_an_answer_replaces_the_one_that_was_there():
    chat = Chat("1").asked("hi").answered(answer("one")).answered(answer("two"))
    assert contents(chat) == [("user", "hi"), ("assistant", "two")]


def test_the_model_gets_the_system_text_first_and_no_reasoning():
    chat = Chat("1", system="Be short.").asked("hi").answered(answer("yes", reasoning="hm"))
    assert contents(chat) == [("system", "Be short."), ("user", "hi"), ("assistant", "yes")]


def test_turns_alternate_for_the_model_even_where_an_answer_said_nothing():
    chat = Chat("1").asked("a").answered(answer("", reasoning="hm")).asked("b").asked("c")
    assert contents(chat) == [("user", "a\n\nb\n\nc")]


def test_taking_the_last_turn_back_takes_its_answer_too():
    chat = Chat("1").asked("a").answered(answer("x")).asked("b").answered(answer("y"))
    assert contents(chat.without_last_turn()) == [("user", "a"), ("assistant", "x")]
    assert Chat("1").without_last_turn() == Chat("1")


def test_the_new_tokens_of_a_turn_come_after_the_answer_before_it():
    chat = Chat("1")
    for prompt, written, thought in ((30, 12, 0), (57, 20, 8), (90, 5, 0)):
        numbers = Numbers(prompt_tokens=prompt, answer_tokens=written, reasoning_tokens=thought)
        chat = chat.asked("x").answered(answer("y", numbers=numbers))
    assert chat.new_tokens == (30, 57 - 30 - 12, 90 - 57 - 12)


def test_what_was_typed_is_shown_and_what_was_attached_is_sent():
    chat = Chat("1").asked("@a.py fix\n\na.py:\n```py\nx\n```", shown="@a.py fix")
    assert chat.last_asked == "@a.py fix"
    assert chat.for_model()[0]["content"].endswith("```py\nx\n```")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n  What is MLX?\nTell me.", "What is MLX?"),
        ("x" * 61, "x" * 59 + "…"),
        ("   ", ""),
    ],
)
def test_the_first_line_asked_names_a_chat(text, title):
    assert title_of(text) == title
    assert Chat("1", title="kept").asked(text).title == "kept"


@pytest.mark.parametrize(
    ("markdown", "blocks"),
    [
        ("a\n```py\nx = 1\n```\nb\n~~~\ny\n~~~", ["x = 1", "y"]),
        ("````\n```\ninner\n```\n````", ["```\ninner\n```"]),
        ("```\nnot closed", ["not closed"]),
        ("none", []),
    ],
)
def test_code_blocks_are_what_stands_between_fences(markdown, blocks):
    assert code_blocks(markdown) == blocks
