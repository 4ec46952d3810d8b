"""The details panel and the status line: the speed of drafts, in any window and without colours."""

import asyncio
from dataclasses import replace

import pytest

from engine.text.answer_text import TextDelta
from tests.tui.rigs import (
    TIMINGS,
    ScriptedBackend,
    app_of,
    ask,
    done,
    ready,
    screen_lines,
    start_of,
)

DRAFTED = replace(
    TIMINGS, predicted_n=41, draft_n=30, draft_n_accepted=20, draft_rounds=9, predicted_s=0.5
)


def screen_after_two_turns(environ, size) -> str:
    drafted = [TextDelta("edited", tokens=41), done("edited", timings=DRAFTED)]

    async def main():
        app = app_of(start_of(environ, save=False), ScriptedBackend("plain", drafted))
        async with app.run_test(size=size) as pilot:
            await ready(pilot)
            await ask(pilot, "hi")
            await ask(pilot, "edit")
            await pilot.press("f2")
            await pilot.pause(0.1)
            shown.append(screen_lines(app))

    shown: list[str] = []
    asyncio.run(main())
    return shown[0]


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40)])
@pytest.mark.parametrize("no_color", [None, "1"])
def test_a_block_a_turn_shows_speed_and_acceptance(environ, monkeypatch, size, no_color):
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    shown = screen_after_two_turns(environ, size)
    assert "tok/s     ▃█ up to 80.0" in shown
    assert "accepted  ·▆ 67% of drafts" in shown
    assert "with drafts 80.0 tok/s, without 20.0" in shown
    assert max(map(len, shown.splitlines())) <= size[0]


def test_the_status_line_shows_tokens_a_forward_of_the_turn_with_drafts(environ):
    status = screen_after_two_turns(environ, (120, 40)).splitlines()[-1]
    assert "80.0 tok/s" in status
    assert "drafts 20/30 · 2.0 tokens a forward" in status
