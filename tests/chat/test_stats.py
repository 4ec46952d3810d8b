"""A chat in numbers: what is not known is not shown, and every line has its room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage, Numbers
from mlxcel_cli.chat.stats import comparison, plots, speed_parts, speed_text, table

PLAIN = Numbers(34, 12, 21, 0.25, 20.0)
DRAFTED = Numbers(99, 12, 41, 0.25, 40.0, drafted_tokens=30, accepted_tokens=20)


def chat_of(*numbers: Numbers) -> Chat:
    chat = Chat("id")
    for one in numbers:
        chat = chat.asked("q").answered(ChatMessage(ASSISTANT, "a", numbers=one))
    return chat


def test_a_chat_without_answers_has_neither():
    assert [*table(chat_of(), 80), *plots(chat_of(), 80)] == []


def test_without_drafts_nothing_is_said_of_them():
    text = "\n".join([*table(chat_of(PLAIN), 80), *plots(chat_of(PLAIN), 80)])
    assert "draft" not in text
    assert "forward" not in text
    assert "accepted" not in text


def test_drafts_are_shown_with_the_tokens_of_a_forward():
    names, _, drafted = table(chat_of(PLAIN, DRAFTED), 80)
    assert names.split()[-2:] == ["drafts", "tok/forward"]
    assert drafted.split()[-2:] == ["20/30", "2.00"]


def test_speed_with_drafts_stands_next_to_speed_without():
    said = [*comparison(chat_of(PLAIN, DRAFTED))]
    assert said == ["with drafts 40.0 tok/s, without 20.0"]


@pytest.mark.parametrize(
    "numbers", [[], [PLAIN], [DRAFTED], [Numbers(34, 12, 3, 0.25, 20.0), DRAFTED]]
)
def test_speeds_are_not_compared_where_one_is_not_known(numbers):
    assert [*comparison(chat_of(*numbers))] == []


def test_the_mean_speed_is_of_all_tokens_in_all_seconds():
    fast = Numbers(34, 12, 41, 0.25, 80.0)
    slow = Numbers(34, 12, 11, 0.25, 10.0)
    assert next(comparison(chat_of(fast, slow, DRAFTED))).endswith("without 33.3")


def test_a_plot_has_a_block_a_turn_on_a_scale_from_zero():
    numbers = [Numbers(1, 1, 9, 0.1, float(rate)) for rate in (0, 1, 4, 8)]
    assert [*plots(chat_of(*numbers), 40)] == ["tok/s     ·▂▅█ up to 8.0"]


def test_a_turn_without_drafts_has_no_acceptance():
    assert "accepted  ·▆ 67% of drafts" in [*plots(chat_of(PLAIN, DRAFTED), 40)]


rates = st.floats(0, 9999.0)
counts = st.integers(0, 9999)


@given(
    st.lists(st.builds(Numbers, counts, counts, counts, rates, rates, counts), max_size=60),
    st.integers(36, 120),
)
def test_no_line_is_longer_than_its_room(numbers, columns):
    chat = chat_of(*numbers)
    for line in [*table(chat, columns), *plots(chat, columns), *comparison(chat)]:
        assert len(line) <= columns


@pytest.mark.parametrize("columns", [36, 60, 80, 120])
def test_turn_answer_and_speed_are_always_there(columns):
    names = next(table(chat_of(DRAFTED), columns)).split()
    assert {"turn", "answer", "tok/s"} <= set(names)


def test_a_forward_s_tokens_are_known_only_with_drafts():
    assert PLAIN.tokens_per_forward is None
    assert DRAFTED.tokens_per_forward == 2.0
    assert Numbers(answer_tokens=1, drafted_tokens=3).tokens_per_forward is None
    assert Numbers(answer_tokens=21, drafted_tokens=9).tokens_per_forward == 1.0


def answer(**values) -> ChatMessage:
    return ChatMessage(ASSISTANT, "a", numbers=Numbers(**values))


def test_nothing_is_said_of_an_answer_that_has_not_begun():
    assert speed_parts(answer()) == ()


def test_drafts_are_shown_with_what_they_brought():
    shown = speed_text(
        answer(answer_tokens=41, tokens_per_s=40, ttft_s=0.5, drafted_tokens=30, accepted_tokens=20)
    )
    assert shown == "40.0 tok/s · first 0.50 s · drafts 20/30 · 2.0 tokens a forward"


def test_tokens_a_forward_are_shown_for_drafts_only():
    assert speed_text(answer(answer_tokens=41, tokens_per_s=40)) == "40.0 tok/s · first 0.00 s"
