"""Turns SIGINT, SIGTERM and SIGHUP into one exception on the main thread; a second one exits hard.

SIGPIPE, which Python reports as an error of the write, has its exception here too.
"""

import os
import signal
from types import FrameType


class ReaderGone(Exception):
    """Nobody reads stdout any more.

    Not a BrokenPipeError: Typer ends the process by its own rule when it meets one.
    """


class Interrupted(BaseException):
    """The user or the system asked the program to stop.

    Not a KeyboardInterrupt: libraries between the main loop and the entry point catch that one.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)

    @property
    def exit_code(self) -> int:
        """As shells count: 128 and the signal, 130 for SIGINT and 143 for SIGTERM."""
        return 128 + self.signum


class StopSignals:
    """Handlers that raise Interrupted once, and end the process at once the second time.

    The second ends without cleaning up: it is what a person presses when the first one
    seems to do nothing, because a forward or a download cannot be interrupted.
    """

    def __init__(self) -> None:
        self._asked = False

    def install(self) -> None:
        """Take over the signals that ask to stop; on the main thread, before heavy imports."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup and shells without job control ignore one of them on purpose.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._on_signal)

    def end_at_once(self) -> None:
        """From now on the first signal ends the process: the command is done."""
        self._asked = True

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        stop = Interrupted(signum)
        if self._asked:
            os._exit(stop.exit_code)
        self._asked = True
        raise stop
