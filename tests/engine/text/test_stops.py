"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.stops import StopMatcher

CHARACTERS = st.text(alphabet="abA\nλ", max_size=6)
STOPS = st.lists(CHARACTERS, max_size=4)
PIECES = st.lists(CHARACTERS, max_size=12)


def run(stops, pieces):
    """Pieces shown, the flush last, and the stop that was found."""
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    return [*shown, matcher.flush()], matcher.matched


def slow_run(stops, pieces):
    """The same by searching all the text after every piece."""
    stops = [stop for stop in stops if stop]
    text, shown = "", [""]
    for piece in pieces:
        text += piece
        found = [(text.find(stop), index) for index, stop in enumerate(stops) if stop in text]
        if found:
            start, index = min(found)
            return [*shown, text[len("".join(shown)) : start]], stops[index]
        held = max(
            (
                length
                for stop in stops
                for length in range(len(stop))
                if length and text.endswith(stop[:length])
            ),
            default=0,
        )
        shown.append(text[len("".join(shown)) : len(text) - held])
    return [*shown, text[len("".join(shown)) :]], None


@given(stops=STOPS, pieces=PIECES)
def test_it_is_the_search_of_the_whole_text(stops, pieces):
    shown, matched = run(stops, pieces)
    slow_shown, slow_matched = slow_run(stops, pieces)
    assert matched == slow_matched
    assert "".join(shown) == "".join(slow_shown)


@given(stops=STOPS, pieces=PIECES)
def test_text_is_held_back_no_longer_than_it_must(stops, pieces):
    shown, matched = run(stops, pieces)
    slow_shown, _ = slow_run(stops, pieces)
    if matched is None:
        assert shown == slow_shown[1:]


@given(stop=CHARACTERS, pieces=PIECES)
def test_how_the_text_is_cut_changes_nothing(stop, pieces):
    shown, matched = run([stop], pieces)
    whole_shown, whole_matched = run([stop], ["".join(pieces)])
    assert ("".join(shown), matched) == ("".join(whole_shown), whole_matched)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "matched"),
    [
        pytest.param(
            ["beta gamma"],
            ["alpha", " be", "ta", " gam", "ma delta"],
            ["alpha", " ", "", "", "", ""],
            "beta gamma",
            id="no part of a stop is shown (mlx-knife#68)",
        ),
        pytest.param(
            ["beta gamma"],
            ["be", "ta!", " b"],
            ["", "beta!", " ", "b"],
            None,
            id="what was no stop after all comes, the last of it at the end",
        ),
        pytest.param(
            ["User:\n", "Assistant:\n"],
            ["ok\n\nAssis", "tant:\nUser:\n"],
            ["ok\n\n", "", ""],
            "Assistant:\n",
            id="the earliest wins, also when more text comes with it (llama.cpp#13780)",
        ),
        pytest.param(["ab", "abc"], ["abc"], ["", ""], "ab", id="a tie goes to the list's first"),
        pytest.param(["abc", "ab"], ["abc"], ["", ""], "abc", id="whichever that is"),
        pytest.param(["b", "ab"], ["xab"], ["x", ""], "ab", id="the earlier start wins"),
        pytest.param(["", ""], ["a", "b"], ["a", "b", ""], None, id="empty stops are none"),
        pytest.param(["aab"], ["aaaab"], ["aa", ""], "aab", id="a stop inside its own prefix"),
        pytest.param(["😀"], ["a😀b"], ["a", ""], "😀", id="a stop of one character"),
    ],
)
def test_stops_end_the_text_before_them(stops, pieces, expected, matched):
    assert run(stops, pieces) == (expected, matched)


def test_after_a_match_nothing_is_shown():
    matcher = StopMatcher(["x"])
    assert matcher.push("ax") == "a"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def test_a_hostile_stop_costs_a_step_or_two_a_letter():
    """A long run of one character keeps nearly all of the stop alive at every character."""
    steps = 0
    matcher = StopMatcher(["a" * 2000 + "b", "a" * 1500 + "c"])
    original = matcher._automaton.step

    class Counting:
        def __getattr__(self, name):
            return getattr(automaton, name)

        def step(self, node, character):
            nonlocal steps
            steps += 1
            return original(node, character)

    automaton = matcher._automaton
    matcher._automaton = Counting()
    shown = "".join(matcher.push("a" * 7) for _ in range(1000)) + matcher.flush()
    assert shown == "a" * 7000
    assert steps == 7000
