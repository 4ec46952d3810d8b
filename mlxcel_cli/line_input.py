"""Where line mode's messages come from: a pipe, or a person at a terminal."""

import sys
import termios
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from mlxcel_cli.chat.completion import completions
from mlxcel_cli.plain_text import encodable
from mlxcel_cli.stop_key import StopKey

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress

GREETING = 'Type a message; /help lists commands, /bye leaves, """ begins and ends several lines.'

LOCAL_FLAGS = 3
"""Where `termios.tcgetattr` has them."""


class Lines(Protocol):
    """Where a user's lines come from."""

    greeting: str
    """What is said before the first."""

    takes_keys: bool
    """Whether a user sits there, whose Ctrl-C is meant for what runs and not for the program."""

    def read(self, prompt: str, draft: str, key: StopKey) -> str:
        """The next line.

        Args:
            prompt: what stands before it.
            draft: what it holds at first.
            key: is told when the line is asked for, and of a Ctrl-C right behind it.

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
            # One line of broken bytes is no reason to answer none of the others.
            reconfigure(errors="replace")
        self._stdin = stdin
        end = "stdout" if stdin.isatty() else "stdin"
        self.greeting = f"mlxcel: {end} is no terminal: each line is a message"

    def read(self, prompt: str, draft: str, key: StopKey) -> str:
        """The next line."""
        del prompt, draft
        key.forget()
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

        class Kept(FileHistory):
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
                history=InMemoryHistory() if history is None else Kept(str(history)),
                completer=Words(),
                complete_while_typing=False,
            )

    def read(self, prompt: str, draft: str, key: StopKey) -> str:
        """The next line."""
        # Its own handler of SIGINT would lose the signals that come while it is put away.
        line = self._session.prompt(prompt, default=draft, pre_run=key.forget, handle_sigint=False)
        if _typed_ctrl_c(self._session.input):
            key.press()
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
    """Keys that the terminal holds and nobody has read."""
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
