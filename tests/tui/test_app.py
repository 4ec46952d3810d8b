"""The chat on the screen, key by key."""

import asyncio

from tests.tui.rigs import ScriptedBackend, app_of, ask, ready, screen_lines, start_of


def test_first(environ):
    async def run():
        backend = ScriptedBackend("Hello **you**\n\n```python\nx = 1\n```\n")
        app = app_of(start_of(environ), backend)
        async with app.run_test(size=(80, 24)) as pilot:
            await ready(pilot)
            print(screen_lines(app))
            await ask(pilot, "hi [b]x[/b]")
            print(screen_lines(app))
            await pilot.press("f1")
            await pilot.pause()
            print(screen_lines(app))
            await pilot.press("escape")
            await pilot.press("ctrl+p")
            await pilot.pause(0.5)
            print(screen_lines(app))
            await pilot.press("escape")
            await pilot.press("f2")
            await pilot.pause(0.2)
            print(screen_lines(app))

    asyncio.run(run())
