"""How the text of an answer gets on the screen while it comes: the user's keys go first."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcel_cli.tui.answer_markdown import AnswerMarkdown

SHOWN_S = 0.05
"""How long a key may take to be shown."""

MOST_DELAY_S = 0.15
"""How long text is kept back at most, while one key follows another."""


class TypingWatch:
    """Knows when a key came last, and how long to wait until it is shown.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key_s = float("-inf")

    def note_key(self) -> None:
        """A key came."""
        self._key_s = self._clock()

    @property
    def now_s(self) -> float:
        """What the clock says."""
        return self._clock()

    def left_s(self, since_s: float) -> float:
        """How long to keep back what has waited since then; 0 or less: no longer."""
        until = min(self._key_s + SHOWN_S, since_s + MOST_DELAY_S)
        return until - self._clock()


class MarkdownWriter:
    """Adds to an answer's text what has come, as soon as no key is to be shown.

    Args:
        text: where it is added.
        typing: knows when keys came.
    """

    def __init__(self, text: "AnswerMarkdown", typing: TypingWatch) -> None:
        self._text = text
        self._typing = typing
        self._waiting = ""
        self._since_s = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def write(self, text: str) -> None:
        """Add text, now or soon."""
        if not self._waiting:
            self._since_s = self._typing.now_s
        self._waiting += text
        if self._later is None and self._task is None:
            self._add_or_wait()

    async def stop(self) -> None:
        """Add no more: what still waits is dropped."""
        self._waiting = ""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._task is not None:
            await self._task

    def _add_or_wait(self) -> None:
        self._later = self._task = None
        if not self._waiting or not self._text.is_attached:
            return
        left_s = self._typing.left_s(self._since_s)
        if left_s > 0:
            self._later = asyncio.get_running_loop().call_later(left_s, self._add_or_wait)
        else:
            self._task = asyncio.create_task(self._add())

    async def _add(self) -> None:
        text, self._waiting = self._waiting, ""
        await self._text.append(text)
        self._add_or_wait()
