"""Pictures of the chat as text, for a review: every state at three sizes."""

import asyncio

import pytest

from engine.errors import EvalFailed
from engine.models.progress import Progress
from engine.text.answer_text import TextDelta
from tests.cli.snapshots import TextSnapshot
from tests.tui.rigs import (
    Gate,
    ScriptedBackend,
    app_of,
    ask,
    done,
    ready,
    say,
    screen_lines,
    start_of,
    until,
)

SIZES = [pytest.param((80, 24), id="80x24"), pytest.param((120, 40), id="120x40"),
         pytest.param((40, 12), id="40x12")]  # fmt: skip

CODE = 'Here:\n\n```python\ndef twice(x):\n    """Two times x."""\n    return 2 * x\n```\n\nDone.'
TABLE = "| city | people |\n|---|---:|\n| Paris | 2,100,000 |\n| 東京 | 14,000,000 |\n"
WIDE = "日本語の文章と絵文字 🙂🚀 が混ざっています。\n\n- 項目一 👍\n- 项目二\n- 항목 셋 🇫🇷"
LONG = "word " * 60 + "\n\n" + "x" * 200


@pytest.fixture
def picture(environ, snapshot):
    """Takes a picture after ``steps`` and holds it against the one that was reviewed."""

    def take(backend, steps, size, gate=None, **options):
        async def main():
            app = app_of(start_of(environ, save=False, **options), backend)
            async with app.run_test(size=size, notifications=True) as pilot:
                app.prompt.cursor_blink = False
                await steps(pilot)
                await pilot.pause(0.1)
                taken = screen_lines(app)
                if gate is not None:
                    gate.opened.set()
            assert taken == snapshot.use_extension(TextSnapshot)

        asyncio.run(main())

    return take


def answered(text: str):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "Show me.")

    return ScriptedBackend([TextDelta(text, tokens=21), done(text)]), steps


@pytest.mark.parametrize("size", SIZES)
def test_empty(picture, size):
    picture(ScriptedBackend(), ready, size)


@pytest.mark.parametrize("size", SIZES)
def test_loading(picture, size):
    gate = Gate()

    async def steps(pilot):
        await until(pilot, gate.reached.is_set)
        await until(pilot, lambda: "loading" in screen_lines(pilot.app))

    picture(ScriptedBackend(load=[Progress("loading", 45, 100), gate]), steps, size, gate)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text",
    [pytest.param(CODE, id="code"), pytest.param(TABLE, id="table"),
     pytest.param(WIDE, id="wide"), pytest.param(LONG, id="long")],
)  # fmt: skip
def test_answer(picture, size, text):
    picture(*answered(text), size)


@pytest.mark.parametrize("size", SIZES)
def test_streaming(picture, size):
    gate = Gate()
    backend = ScriptedBackend([TextDelta("The **first** words", tokens=3), gate, done("x")])

    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "Tell me.")
        await until(pilot, lambda: "first words" in screen_lines(pilot.app))

    picture(backend, steps, size, gate)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_thinking(picture, size, is_open):
    backend = ScriptedBackend(
        [
            TextDelta("Six times seven.", is_reasoning=True, tokens=5),
            TextDelta("42", tokens=6),
            done("42"),
        ]
    )

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "Six by seven?")
        if is_open:
            await pilot.press("ctrl+t")

    picture(backend, steps, size)


@pytest.mark.parametrize("size", SIZES)
def test_error(picture, size):
    async def steps(pilot):
        await ready(pilot)
        await say(pilot, "Tell me.")
        await until(pilot, lambda: pilot.app.prompt.text and pilot.app._notifications)
        await pilot.pause(0.2)

    picture(ScriptedBackend([EvalFailed("out of luck")]), steps, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", ["f1", "f2", "ctrl+p"])
def test_pages(picture, size, key):
    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, "hi")
        await pilot.press(key)
        await pilot.pause(0.4)

    picture(ScriptedBackend(), steps, size)


def test_light_theme(picture):
    backend, steps = answered(CODE)
    picture(backend, steps, (80, 24), theme="light")


def test_no_color(environ, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def main():
        app = app_of(start_of(environ, save=False), ScriptedBackend(CODE))
        async with app.run_test(size=(80, 24)) as pilot:
            await ready(pilot)
            await ask(pilot, "Show me.")
            styles = [
                segment.style
                for strip in app.screen._compositor.render_strips()
                for segment in strip.apply_filter(app._filters[-1], app.ansi_theme)
                if segment.style is not None and segment.style.color is not None
            ]
            triplets = {style.color.triplet for style in styles if style.color.triplet}
            assert all(color.red == color.green == color.blue for color in triplets)
            assert triplets

    asyncio.run(main())
