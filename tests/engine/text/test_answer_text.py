"""An answer's text in deltas, reasoning and answer apart, and what is kept of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.answer_text import (
    KNOWN_MARKS,
    AnswerText,
    TextDelta,
    ThinkingMarks,
    joined,
    marks_of,
)

THINK = (ThinkingMarks("<think>", "</think>"),)
WORDS = st.lists(
    st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "<", "a", " ", "\n", "[THINK]"]),
    max_size=14,
)


def streamed(chunks, marks, *, inside=False):
    text = AnswerText(marks, inside=inside)
    deltas = [delta for chunk in chunks for delta in text.push(chunk)] + text.flush()
    assert text.text == "".join(delta.text for delta in deltas if not delta.is_reasoning)
    return text.reasoning, text.text


def slow_split(text, inside):
    """One regular expression over the whole text."""
    reasoning, answer = "", ""
    words = re.split("(</?think>)", text)
    for index, word in enumerate(words):
        if index % 2:
            inside = word == "<think>"
        elif inside:
            reasoning += word.lstrip()
        else:
            answer += word.lstrip() if index else word
    return reasoning, answer


@given(chunks=WORDS, inside=st.booleans())
def test_streamed_deltas_are_the_split_of_the_whole_text(chunks, inside):
    expected = slow_split("".join(chunks), inside)
    assert streamed(chunks, THINK, inside=inside) == expected
    assert streamed(["".join(chunks)], THINK, inside=inside) == expected


@pytest.mark.parametrize(
    ("chunks", "inside", "expected"),
    [
        pytest.param(
            ["<think>\nhm", "\n</think>\n\n", "yes"], False, ("hm\n", "yes"), id="a block"
        ),
        pytest.param(
            ["hm</th", "ink>yes"],
            True,
            ("hm", "yes"),
            id="a block the prompt opened (mlx-vlm#1644)",
        ),
        pytest.param(["<think>hm"], False, ("hm", ""), id="never closed: reasoning"),
        pytest.param(["hm </thi"], True, ("hm </thi", ""), id="half a mark at the end is text"),
        pytest.param(["  yes"], False, ("", "  yes"), id="no block: white space stays"),
        pytest.param(["a</think>b"], False, ("", "ab"), id="a stray mark is not shown"),
        pytest.param(["<think>", "</think>", "yes"], False, ("", "yes"), id="an empty block"),
    ],
)
def test_reasoning_is_split_from_the_answer(chunks, inside, expected):
    assert streamed(chunks, THINK, inside=inside) == expected


def test_only_what_may_become_a_mark_is_held_back():
    text = AnswerText(THINK)
    shown = ["".join(delta.text for delta in text.push(raw)) for raw in ("a<t", "b<", "c")]
    assert shown == ["a", "<tb", "<c"]


def test_neighbouring_text_of_one_kind_is_one_delta():
    assert AnswerText(THINK).push("a</think>b<think>c") == [
        TextDelta("ab"),
        TextDelta("c", is_reasoning=True),
    ]


def test_without_marks_all_text_is_answer():
    assert streamed(["<think>a", "</think>"], ()) == ("", "<think>a</think>")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, ()),
        ("{{ messages }}", ()),
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("[THINK]", (KNOWN_MARKS[2],)),
    ],
)
def test_a_templates_marks_are_its_models(template, expected):
    assert marks_of(template) == expected


def test_deltas_carry_the_count_of_tokens_and_are_kept_by_kind():
    text = AnswerText(THINK, inside=True)
    deltas = [*text.push("hm</th", 2), *text.push("ink>yes<", 4), *text.flush(5)]
    assert deltas == [
        TextDelta("hm", is_reasoning=True, tokens=2),
        TextDelta("yes", tokens=4),
        TextDelta("<", tokens=5),
    ]
    assert (text.text, text.reasoning, text.reasoned) == ("yes<", "hm", True)


def test_white_space_inside_reasoning_that_the_prompt_began_is_kept():
    text = AnswerText(THINK, inside=True, begun=True)
    assert text.push(" so") == [TextDelta(" so", is_reasoning=True)]


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
