"""An answer's Markdown while it comes: what is written gives way to the user's keys."""

import asyncio

from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Markdown

from mlxcel_cli.tui.answer_blocks import BLOCKS
from mlxcel_cli.tui.typing_watch import TypingWatch


class AnswerText(Markdown):
    """The text of an answer while it comes and after."""

    BLOCKS = BLOCKS

    virtual_size = Reactive(Size(0, 0))
    """Known from the layout, which need not be done again for it: nothing here scrolls."""


class Pen:
    """Adds to an answer's text what has come, as soon as no key is to be shown.

    Args:
        text: where it is added.
        typing: knows when keys came.
    """

    def __init__(self, text: AnswerText, typing: TypingWatch) -> None:
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
