"""The transcript by itself."""

import asyncio

from mlxcel_cli.tui.transcript import Hints, Note, Transcript


def test_what_comes_for_a_screen_that_is_gone_is_dropped():
    """SIGTERM may come between a message and its widgets."""
    transcript = Transcript(Hints())
    asyncio.run(transcript._put(Note("late")))
    assert len(transcript.children) == 0
