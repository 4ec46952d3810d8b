"""The transcript by itself."""

import asyncio

from mlxcel_cli.tui.transcript import Hints, Note, Transcript


def test_what_is_told_to_a_screen_that_is_gone_is_dropped():
    """SIGTERM may come between a message and its widgets."""

    async def tell() -> int:
        transcript = Transcript()
        await transcript.show([], Hints("", "", "", ""))
        await transcript.add(Note("late"))
        return len(transcript.children)

    assert asyncio.run(tell()) == 0
