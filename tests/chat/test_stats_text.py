"""What is said of an answer: only what is known of it."""

from mlxcel_cli.chat.messages import ASSISTANT, ChatMessage, Numbers
from mlxcel_cli.chat.stats_text import speed_parts, speed_text


def answer(**values) -> ChatMessage:
    return ChatMessage(ASSISTANT, "a", numbers=Numbers(**values))


def test_nothing_is_said_of_an_answer_that_has_not_begun():
    assert speed_parts(answer()) == ()


def test_drafts_are_told_with_what_they_brought():
    told = speed_text(
        answer(answer_tokens=41, tokens_per_s=40, ttft_s=0.5, drafted_tokens=30, accepted_tokens=20)
    )
    assert told == "40.0 tok/s · first 0.50 s · drafts 20/30 · 2.0 tokens a forward"


def test_tokens_a_forward_are_told_of_drafts_only():
    assert speed_text(answer(answer_tokens=41, tokens_per_s=40)) == "40.0 tok/s · first 0.00 s"
