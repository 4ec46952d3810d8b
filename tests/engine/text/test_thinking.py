"""Reasoning and answer, told apart in a stream."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.thinking import (
    KNOWN_MARKS,
    TextKind,
    ThinkingFilter,
    ThinkingMarks,
    marks_of,
)

THINK = (ThinkingMarks("<think>", "</think>"),)
WORDS = st.lists(
    st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "<", "a", " ", "\n", "[THINK]"]),
    max_size=14,
)


def streamed(pieces, marks, *, inside=False):
    thinking = ThinkingFilter(marks, inside=inside)
    parts = [part for piece in pieces for part in thinking.push(piece)] + thinking.flush()
    return tuple(
        "".join(part.text for part in parts if part.kind is kind)
        for kind in (TextKind.REASONING, TextKind.ANSWER)
    )


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


@given(pieces=WORDS, inside=st.booleans())
def test_streamed_parts_are_the_split_of_the_whole_text(pieces, inside):
    expected = slow_split("".join(pieces), inside)
    assert streamed(pieces, THINK, inside=inside) == expected
    assert streamed(["".join(pieces)], THINK, inside=inside) == expected


@pytest.mark.parametrize(
    ("pieces", "inside", "expected"),
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
def test_reasoning_is_told_from_the_answer(pieces, inside, expected):
    assert streamed(pieces, THINK, inside=inside) == expected


def test_only_what_may_become_a_mark_is_held_back():
    thinking = ThinkingFilter(THINK)
    shown = ["".join(part.text for part in thinking.push(piece)) for piece in ("a<t", "b<", "c")]
    assert shown == ["a", "<tb", "<c"]


def test_neighbouring_text_of_one_kind_is_one_part():
    parts = ThinkingFilter(THINK).push("a</think>b<think>c")
    assert [(part.kind, part.text) for part in parts] == [
        (TextKind.ANSWER, "ab"),
        (TextKind.REASONING, "c"),
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
