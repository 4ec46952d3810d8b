"""Where line mode's messages come from: a pipe, or a person at a terminal; and what Ctrl-C does.

Ctrl-C drops the line being typed, stops what runs, and at last ends the program. It counts from the
moment a line is sent: what is pressed before the answer begins stops it too.
"""

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from mlxcel_cli.chat.slash import completions
from mlxcel_cli.plain_text import encodable

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress

GREETING = 'Type a message; /help lists commands, /bye leaves, """ begins and ends several lines.'

FENCE = 3 * '"'

LOCAL_FLAGS = 3
"""Where `termios.tcgetattr` has them."""


class InterruptHandler:
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
        """Whether it was pressed since `reset`."""

    def __enter__(self) -> "InterruptHandler":
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

    def reset(self) -> None:
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


class MessageReader:
    """Joins lines into messages.

    Three double quotes open a message of several lines and close it; text may stand on either
    line, and both on one.
    """

    def __init__(self) -> None:
        self._lines: list[str] | None = None
        self.was_quoted = False
        """Whether the newest message stood between quotes."""

    @property
    def is_open(self) -> bool:
        """Whether a message is begun and not closed."""
        return self._lines is not None

    def push(self, line: str) -> str | None:
        """Take a line; the message it completes, None where there is none yet."""
        if self._lines is None:
            line = line.strip()
            self.was_quoted = line.startswith(FENCE)
            if not line.startswith(FENCE):
                return line or None
            self._lines = []
            line = line.removeprefix(FENCE)
            if not line:
                return None
        body, fence, _ = line.partition(FENCE)
        if body or not fence:
            self._lines.append(body)
        return self.flush() if fence else None

    def flush(self) -> str | None:
        """The message that was begun: its input has ended."""
        lines, self._lines = self._lines, None
        return "\n".join(lines or ()).strip("\n") or None

    def discard(self) -> None:
        """Forget the message that was begun."""
        self._lines = None


class Lines(Protocol):
    """Where a user's lines come from."""

    greeting: str
    """What is said before the first."""

    takes_keys: bool
    """Whether a user sits there, whose Ctrl-C is meant for what runs and not for the program."""

    def read(self, prompt: str, draft: str, interrupt: InterruptHandler) -> str:
        """The next line.

        Args:
            prompt: what stands before it.
            draft: the line's initial text.
            interrupt: reset when the line is asked for, and pressed for a Ctrl-C right after it.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: the user dropped the line.
        """

    def drop_line(self) -> bool:
        """Drop the line that is being typed, if one is, from a signal's handler."""


class PipedLines:
    """Lines of a pipe or file; nothing is prompted for."""

    takes_keys = False

    def __init__(self, stdin: TextIO) -> None:
        reconfigure = getattr(stdin, "reconfigure", None)
        if reconfigure is not None:
            # One line of broken bytes must not keep the others from being answered.
            reconfigure(errors="replace")
        self._stdin = stdin
        end = "stdout" if stdin.isatty() else "stdin"
        self.greeting = f"mlxcel: {end} is no terminal: each line is a message"

    def read(self, prompt: str, draft: str, interrupt: InterruptHandler) -> str:
        """The next line."""
        del prompt, draft
        interrupt.reset()
        line = self._stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def drop_line(self) -> bool:
        """Nothing is typed here."""
        return False


class TypedLines:
    """Lines typed at a terminal, with history and completion.

    Args:
        history: the file of earlier lines; None keeps them in memory.
        is_dumb: whether the terminal knows no escape codes.
    """

    greeting = GREETING
    takes_keys = True

    def __init__(self, history: Path | None, *, is_dumb: bool = False) -> None:
        # It costs 0.1 s, which pipes need not pay.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import create_app_session
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.document import Document
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output.plain_text import PlainTextOutput

        class LenientHistory(FileHistory):
            """What cannot be kept on the disk is kept in memory."""

            def load_history_strings(self) -> Iterable[str]:
                with suppress(OSError):
                    return super().load_history_strings()
                return ()

            def store_string(self, string: str) -> None:
                with suppress(OSError):
                    super().store_string(string)

        class Words(Completer):
            def get_completions(self, document: Document, _: object) -> Iterator[Completion]:
                start, found = completions(document.text_before_cursor)
                for one in found:
                    yield Completion(one, start_position=-len(start))

        if history is not None:
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
        # Its own output for dumb terminals still shows the cursor, by a code.
        with create_app_session(output=PlainTextOutput(sys.stdout) if is_dumb else None):
            self._session: PromptSession[str] = PromptSession(
                history=InMemoryHistory() if history is None else LenientHistory(str(history)),
                completer=Words(),
                complete_while_typing=False,
            )

    def read(self, prompt: str, draft: str, interrupt: InterruptHandler) -> str:
        """The next line."""
        # Its own handler of SIGINT would lose the signals that come while it is put away.
        line = self._session.prompt(
            prompt, default=draft, pre_run=interrupt.reset, handle_sigint=False
        )
        if _typed_ctrl_c(self._session.input):
            interrupt.press()
        return encodable(line)

    def drop_line(self) -> bool:
        """Drop the line that is being typed, if one is."""
        from prompt_toolkit.application import get_app_or_none

        app = get_app_or_none()
        if app is None or app.loop is None or not app.is_running or app.is_done:
            return False
        app.loop.call_soon_threadsafe(app.key_processor.send_sigint)
        return True


def _typed_ctrl_c(keyboard: "Input") -> bool:
    """Whether Ctrl-C was typed behind a line while it was still a key like others.

    It is one until the line editor has put the terminal back. As with a terminal's own Ctrl-C,
    what was typed before it is dropped; the keys behind it are the next line's.
    """
    from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
    from prompt_toolkit.keys import Keys

    typed = [*get_typeahead(keyboard), *_waiting_keys(keyboard)]
    presses = [at for at, one in enumerate(typed, start=1) if one.key == Keys.ControlC]
    store_typeahead(keyboard, typed[presses[-1] :] if presses else typed)
    return bool(presses)


def _waiting_keys(keyboard: "Input") -> "list[KeyPress]":
    """Keys that the terminal has received and nobody has read."""
    with suppress(termios.error, OSError):
        terminal = keyboard.fileno()
        modes = termios.tcgetattr(terminal)
        # Half a line can be read; Ctrl-C is a signal from here on.
        by_key = list(modes)
        by_key[LOCAL_FLAGS] &= ~termios.ICANON
        termios.tcsetattr(terminal, termios.TCSANOW, by_key)
        try:
            return keyboard.read_keys()
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
    return []
