"""Answers that their lines end: llama.cpp's ``n_indent`` and ``t_max_predict_ms``."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.finish import FinishCause
from mlxcel_cli.serve.row_hooks import IndentFilter, LineBounds
from tests.serve.test_native import ONLY_A, ask, frames

NEW_LINES = {"logit_bias": {"10": 100}}


class Letters:
    """A decoder of tokens that are letters."""

    push = staticmethod(chr)


def bounds(now, **more):
    return LineBounds(Letters(), 2, **{"indent": 0, "max_ms": 0} | more, clock=lambda: now[0])


def ends_at(hooks, text, prompt="ab", tick=lambda: None):
    """After which letter of ``text`` the hooks end the answer; None: not at all."""
    ids = list(map(ord, prompt))
    for place, letter in enumerate(text):
        ids.append(ord(letter))
        tick()
        cause = hooks.finish(ids)
        if cause is not None:
            assert cause is FinishCause.LENGTH
            return place
    return None


@pytest.mark.parametrize(
    ("text", "least", "passes"),
    [
        ("a\n  b\n c", 2, "a\n  b\n "),
        ("a\n\t\tb\n  c", 2, "a\n\t\tb\n  c"),
        ("a", 4, "a"),
        ("  a\n", 4, "  a\n"),
        ("a\n   ", 4, "a\n   "),
        ("a\n\nb", 1, "a\n"),
        ("a\nb", 0, "a\nb"),
    ],
)
def test_lines_after_the_first_are_indented_or_nothing_more_passes(text, least, passes):
    lines = IndentFilter(least)
    assert lines.push(text) == passes
    assert lines.is_over == (passes != text)


def plain_rule(text, least):
    """What passes, said with whole lines."""
    first, *others = text.split("\n")
    shown = first
    for place, line in enumerate(others):
        indent = len(line) - len(line.lstrip(" \t"))
        is_open = place == len(others) - 1 and indent == len(line)
        if indent < least and not is_open:
            return f"{shown}\n{line[:indent]}"
        shown += f"\n{line}"
    return shown


@given(st.text("a \t\n", max_size=12), st.integers(1, 3), st.lists(st.integers(0, 12)))
def test_pieces_pass_as_the_whole_text_does(text, least, cuts):
    lines = IndentFilter(least)
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert "".join(map(lines.push, pieces)) == plain_rule(text, least)


def test_a_line_ends_the_row_at_its_first_character_and_the_prompt_is_not_checked():
    assert ends_at(bounds([0.0], indent=2), "x\n  y\n z", prompt="\n\n") == 7


def test_time_is_up_only_once_there_is_a_new_line_and_counts_from_the_first_token():
    now = [100.0]

    def tick():
        now[0] += 1.0

    assert ends_at(bounds(now, max_ms=2500), "abcdefgh", tick=tick) is None
    assert ends_at(bounds(now, max_ms=2500), "abcdef\ngh", tick=tick) == 6
    assert ends_at(bounds(now, max_ms=2500), "a\nbcdef", tick=tick) == 3
    assert ends_at(bounds(now, max_ms=0), "a\nbcdef", tick=tick) is None


def test_an_answer_that_is_indented_too_little_is_cut_there_streamed_or_not(server):
    asked = {"n_indent": 2, "n_predict": 30, **NEW_LINES}
    whole = ask(server, **asked).json
    assert (whole["content"], whole["stop_type"], whole["has_new_line"]) == ("\n", "limit", True)
    assert whole["tokens_predicted"] == 2
    assert whole["generation_settings"]["n_indent"] == 2
    *some, last = frames(ask(server, stream=True, **asked))
    assert "".join(frame["content"] for frame in some) == "\n"
    assert (last["stop_type"], last["truncated"]) == ("limit", False)


def test_time_ends_an_answer_with_a_new_line_and_no_other(start_server):
    server = start_server("--no-warmup", faults={"step_s": 0.02})
    cut = ask(server, t_max_predict_ms=1, n_predict=20, **NEW_LINES).json
    assert (cut["stop_type"], cut["generation_settings"]["t_max_predict_ms"]) == ("limit", 1)
    assert 2 <= cut["tokens_predicted"] < 20
    assert ask(server, t_max_predict_ms=1, n_predict=20, **ONLY_A).json["tokens_predicted"] == 20


@pytest.mark.parametrize("field", ["n_indent", "t_max_predict_ms"])
def test_bounds_that_ask_for_nothing_change_nothing_and_wrong_ones_are_named(server, field):
    plain = ask(server, n_predict=6, **NEW_LINES).json["content"]
    assert ask(server, n_predict=6, **{field: 0}, **NEW_LINES).json["content"] == plain
    assert ask(server, n_predict=6, **{field: None}, **NEW_LINES).json["content"] == plain
    for bad in (-2, 2**31, "1", 1.5):
        reply = ask(server, **{field: bad})
        assert reply.status == 400
        assert reply.error["message"].startswith(field)


def test_the_time_for_a_prompt_is_taken_and_not_used_as_in_llama_cpp(server):
    assert ask(server, n_predict=1, t_max_prompt_ms=1).status == 200
