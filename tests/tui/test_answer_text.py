"""An answer's text while it comes: it stays out of the way of keys."""

import asyncio

import pytest
from textual.app import App

from mlxcel_cli.tui.answer_text import AnswerText, Pen
from mlxcel_cli.tui.transcript import AnswerTurn, Transcript
from mlxcel_cli.tui.typing_watch import SHOWN_S, TypingWatch


class TextApp(App[None]):
    CSS = "AnswerTurn { height: auto; }"

    def compose(self):
        yield Transcript()

    async def on_mount(self):
        await self.query_one(Transcript).add(AnswerTurn(None, ""))


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def on_screen():
    """Runs ``steps(pilot, text)`` on an empty answer in a window of 40 columns."""

    def run(steps):
        async def main():
            app = TextApp()
            async with app.run_test(size=(40, 20)) as pilot:
                await steps(pilot, app.query_one(AnswerText))

        asyncio.run(main())

    return run


async def settled(pilot):
    for _ in range(3):
        await pilot.pause()


async def layouts_of(pilot, text, piece: str) -> int:
    """How often the screen is laid out for a piece."""
    await settled(pilot)
    count = 0

    def note(_):
        nonlocal count
        count += 1

    signal = pilot.app.screen.screen_layout_refresh_signal
    signal.subscribe(text, note, immediate=True)
    await text.append(piece)
    await settled(pilot)
    signal.unsubscribe(text)
    return count


def test_words_that_stay_within_their_line_lay_out_nothing(on_screen):
    async def steps(pilot, text):
        await text.append("one")
        assert await layouts_of(pilot, text, " two") == 0

    on_screen(steps)


def test_words_that_need_another_line_lay_out_the_screen_once(on_screen):
    async def steps(pilot, text):
        await text.append("one")
        assert await layouts_of(pilot, text, " two" * 12) == 1
        assert text.region.height == 3

    on_screen(steps)


def test_text_comes_at_once_where_no_key_was_pressed(on_screen):
    async def steps(pilot, text):
        pen = Pen(text, TypingWatch(Clock()))
        pen.write("a")
        await settled(pilot)
        assert text.source == "a"

    on_screen(steps)


def test_text_waits_until_a_key_is_shown(on_screen):
    async def steps(pilot, text):
        clock = Clock()
        typing = TypingWatch(clock)
        pen = Pen(text, typing)
        typing.note_key()
        pen.write("a")
        pen.write("b")
        await settled(pilot)
        assert text.source == ""
        clock.now_s += SHOWN_S
        while text.source != "ab":
            await asyncio.sleep(SHOWN_S / 5)

    on_screen(steps)


def test_text_that_comes_while_some_is_added_follows_it(on_screen):
    async def steps(pilot, text):
        pen = Pen(text, TypingWatch(Clock()))
        pen.write("a\n\n")
        await asyncio.sleep(0)
        pen.write("b")
        await settled(pilot)
        assert text.source == "a\n\nb"

    on_screen(steps)


def test_what_waits_when_the_answer_ends_is_dropped(on_screen):
    async def steps(pilot, text):
        typing = TypingWatch(Clock())
        pen = Pen(text, typing)
        typing.note_key()
        pen.write("late")
        await pen.stop()
        await asyncio.sleep(SHOWN_S * 2)
        assert text.source == ""

    on_screen(steps)


def test_text_for_a_screen_that_is_gone_is_dropped():
    async def main():
        text = AnswerText("")
        Pen(text, TypingWatch(Clock())).write("late")
        await asyncio.sleep(0)
        assert text.source == ""

    asyncio.run(main())
