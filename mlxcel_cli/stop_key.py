"""Ctrl-C in line mode: drops the line that is typed, stops what runs, at last ends the program.

It is heard from the moment a line is sent: what is pressed before the answer begins stops it too.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class StopKey:
    """The handler of SIGINT while it is entered.

    A press stops what runs; a second one before the next line is asked for ends the process. The
    handler raises nothing: an exception in the middle of a save would leave half of it.

    Args:
        drop_line: drops the line that is being typed; False where none is.
    """

    def __init__(self, drop_line: Callable[[], bool]) -> None:
        self._drop_line = drop_line
        self._stop: Callable[[], None] | None = None
        self._before: list[object] = []
        self.pressed = False
        """Whether it was pressed since `forget`."""

    def __enter__(self) -> "StopKey":
        before = signal.getsignal(signal.SIGINT)
        self._before.append(before)
        # Who starts a program with & may have SIGINT ignored.
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        before = self._before.pop()
        if callable(before):
            signal.signal(signal.SIGINT, before)

    def forget(self) -> None:
        """A line is asked for: what was pressed before has had its effect."""
        self.pressed = False

    def press(self) -> None:
        """It was pressed: stop what runs, or what is about to."""
        self.pressed = True
        if self._stop is not None:
            self._stop()

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """While inside, a press calls ``stop``; one that came since the line was sent, at once."""
        with self:
            self._stop = stop
            try:
                if self.pressed:
                    stop()
                yield
            finally:
                self._stop = None

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if self._drop_line():
            return
        if self.pressed:
            os._exit(128 + signum)
        self.press()
