"""Giving way to keys."""

import pytest

from mlxcel_cli.tui.typing_watch import MOST_HELD_S, SHOWN_S, TypingWatch


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_nothing_gives_way_where_no_key_came(clock):
    assert TypingWatch(clock).left_s(clock.now_s) <= 0


def test_what_comes_after_a_key_gives_way_until_that_is_shown(clock):
    typing = TypingWatch(clock)
    typing.note_key()
    assert typing.left_s(typing.now_s) == pytest.approx(SHOWN_S)
    clock.now_s += SHOWN_S
    assert typing.left_s(100.0) <= 0


def test_a_user_who_types_on_does_not_hold_it_for_ever(clock):
    typing = TypingWatch(clock)
    begun_s = typing.now_s
    held_s = 0.0
    typing.note_key()
    while (left_s := typing.left_s(begun_s)) > 0:
        clock.now_s += min(left_s, SHOWN_S / 2)
        held_s = clock.now_s - begun_s
        typing.note_key()
    assert held_s == pytest.approx(MOST_HELD_S)
