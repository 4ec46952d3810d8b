"""An answer's text in deltas, and what is kept of it."""

from engine.text.answer_text import AnswerText, TextDelta, joined
from engine.text.thinking import ThinkingMarks

THINK = (ThinkingMarks("<think>", "</think>"),)


def test_deltas_carry_the_count_of_tokens_and_are_kept_by_kind():
    text = AnswerText(THINK, inside=True)
    deltas = [*text.push("hm</th", 2), *text.push("ink>yes<", 4), *text.flush(5)]
    assert deltas == [
        TextDelta("hm", is_reasoning=True, tokens=2),
        TextDelta("yes", tokens=4),
        TextDelta("<", tokens=5),
    ]
    assert (text.text, text.reasoning, text.reasoned) == ("yes<", "hm", True)


def test_without_marks_a_prompt_opens_no_reasoning():
    text = AnswerText((), inside=True)
    assert text.push("a</think>") == [TextDelta("a</think>")]
    assert not text.reasoned


def test_a_delta_that_is_split_already_is_kept_as_it_is():
    text = AnswerText(THINK)
    given = TextDelta("<think> is a mark")
    assert text.add(given) is given
    assert (text.text, text.reasoned) == (given.text, False)


def test_blocks_alternate():
    text = AnswerText(THINK)
    for raw in ("<think>a", "b</think>", "c", "d<think>e"):
        text.push(raw)
    assert [(one.text, one.is_reasoning) for one in text.blocks] == [
        ("ab", True),
        ("cd", False),
        ("e", True),
    ]


def test_only_neighbours_of_one_kind_are_joined():
    hm, end = TextDelta("hm", is_reasoning=True, tokens=1), object()
    events = [hm, TextDelta("a", tokens=2), TextDelta("b", tokens=3), end, TextDelta("c", tokens=4)]
    ab = TextDelta("ab", tokens=3)
    assert list(joined(events)) == [hm, ab, end, TextDelta("c", tokens=4)]
