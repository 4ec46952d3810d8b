"""An answer's text while it comes: the keys of the user go first."""

import asyncio

import pytest
from textual.app import App

from mlxcel_cli.tui.answer_markdown import AnswerMarkdown
from mlxcel_cli.tui.streaming import MOST_DELAY_S, SHOWN_S, MarkdownWriter, TypingWatch
from mlxcel_cli.tui.transcript import AnswerTurn, Hints, Transcript


class TextApp(App[None]):
    CSS = "AnswerTurn { height: auto; }"

    def compose(self):
        yield Transcript(Hints())

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
                await steps(pilot, app.query_one(AnswerMarkdown))

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
        writer = MarkdownWriter(text, TypingWatch(Clock()))
        writer.write("a")
        await settled(pilot)
        assert text.source == "a"

    on_screen(steps)


def test_text_waits_until_a_key_is_shown(on_screen):
    async def steps(pilot, text):
        clock = Clock()
        typing = TypingWatch(clock)
        writer = MarkdownWriter(text, typing)
        typing.note_key()
        writer.write("a")
        writer.write("b")
        await settled(pilot)
        assert text.source == ""
        clock.now_s += SHOWN_S
        while text.source != "ab":
            await asyncio.sleep(SHOWN_S / 5)

    on_screen(steps)


def test_text_that_comes_while_some_is_added_follows_it(on_screen):
    async def steps(pilot, text):
        writer = MarkdownWriter(text, TypingWatch(Clock()))
        writer.write("a\n\n")
        await asyncio.sleep(0)
        writer.write("b")
        await settled(pilot)
        assert text.source == "a\n\nb"

    on_screen(steps)


def test_what_waits_when_the_answer_ends_is_dropped(on_screen):
    async def steps(pilot, text):
        typing = TypingWatch(Clock())
        writer = MarkdownWriter(text, typing)
        typing.note_key()
        writer.write("late")
        await writer.stop()
        await asyncio.sleep(SHOWN_S * 2)
        assert text.source == ""

    on_screen(steps)


def test_text_for_a_screen_that_is_gone_is_dropped():
    async def main():
        text = AnswerMarkdown("")
        MarkdownWriter(text, TypingWatch(Clock())).write("late")
        await asyncio.sleep(0)
        assert text.source == ""

    asyncio.run(main())


@pytest.fixture
def clock():
    return Clock()


def test_text_need_not_wait_where_no_key_came(clock):
    assert TypingWatch(clock).left_s(clock.now_s) <= 0


def test_what_comes_after_a_key_waits_until_that_is_shown(clock):
    typing = TypingWatch(clock)
    typing.note_key()
    assert typing.left_s(typing.now_s) == pytest.approx(SHOWN_S)
    clock.now_s += SHOWN_S
    assert typing.left_s(100.0) <= 0


def test_a_user_who_keeps_typing_does_not_delay_it_for_ever(clock):
    typing = TypingWatch(clock)
    begun_s = typing.now_s
    delay_s = 0.0
    typing.note_key()
    while (left_s := typing.left_s(begun_s)) > 0:
        clock.now_s += min(left_s, SHOWN_S / 2)
        delay_s = clock.now_s - begun_s
        typing.note_key()
    assert delay_s == pytest.approx(MOST_DELAY_S)
