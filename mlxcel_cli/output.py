"""The only writer to the terminal: the answer on stdout, everything else on stderr.

What is written comes from models, files and servers; a terminal gets no control character of
theirs. A pipe or file gets the answer verbatim.

No escape codes leave here unless the stream is a terminal that knows them and NO_COLOR is
not set; the progress line needs none, it rewrites itself with a carriage return.
"""

import errno
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

from mlxcel_cli.plain_text import visible
from mlxcel_cli.signals import ReaderGone

DIM, PLAIN = "\x1b[2m", "\x1b[0m"

_IN_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}
"""JSON leaves these controls as they are; terminals may obey them."""


class Output:
    """Writes to stdout and stderr and keeps the two apart on one screen."""

    def __init__(
        self, stdout: TextIO | None, stderr: TextIO | None, environ: Mapping[str, str]
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        dumb = environ.get("TERM") == "dumb"
        # The no-color convention: any value but the empty one.
        self._is_for_people = _is_terminal(stdout)
        self._dims = self._is_for_people and not dumb and not environ.get("NO_COLOR")
        self._rewrites = _is_terminal(stderr) and not dumb
        self._progress_columns = 0
        self._at_line_start = True
        encoding = getattr(stdout, "encoding", None) or "utf-8"
        self._writes_unicode = encoding.lower().startswith("utf")

    def write(self, text: str, *, dim: bool = False) -> None:
        """Write to stdout at once.

        Raises:
            ReaderGone: the other end of the pipe is closed.
            OSError: the disk is full.
        """
        if not text:
            return
        self.clear_progress()
        if self._is_for_people:
            text = visible(text)
        shown = f"{DIM}{text}{PLAIN}" if dim and self._dims else text
        if self._stdout is None:
            raise OSError(errno.EBADF, "stdout is closed")
        # Noted first: a signal may come between the write and the note.
        self._at_line_start = text.endswith("\n")
        try:
            self._stdout.write(shown)
            self._stdout.flush()
        except BrokenPipeError:
            abandon_stdout()
            raise ReaderGone from None

    def end_line(self) -> None:
        """End stdout's line, unless it is at its start."""
        if not self._at_line_start:
            self.write("\n")

    def line(self, text: str) -> None:
        """Write one line to stdout."""
        self.write(text + "\n")

    def json_line(self, value: Mapping[str, object]) -> None:
        """Write one JSON object on a line of its own to stdout."""
        text = json.dumps(value, ensure_ascii=not self._writes_unicode)
        self.line(text.translate(_IN_JSON))

    def note(self, text: str) -> None:
        """Write one line to stderr; a stderr that is gone loses it silently."""
        self.clear_progress()
        self._to_stderr(f"{visible(text)}\n")

    def progress(self, text: str) -> None:
        """Show progress in one line of a terminal, over the last such line."""
        if not self._rewrites:
            return
        room = shutil.get_terminal_size().columns - 1
        shown = printable(text)[:room]
        self._to_stderr("\r" + shown.ljust(min(self._progress_columns, room)))
        self._progress_columns = len(shown)

    def clear_progress(self) -> None:
        """Take the progress line away."""
        if self._progress_columns:
            columns = min(self._progress_columns, shutil.get_terminal_size().columns - 1)
            self._to_stderr("\r" + " " * columns + "\r")
            self._progress_columns = 0

    @property
    def is_for_people(self) -> bool:
        """Whether stdout is a terminal."""
        return self._is_for_people

    def _to_stderr(self, text: str) -> None:
        if self._stderr is None:
            return
        with suppress(OSError, ValueError):
            self._stderr.write(text)
            self._stderr.flush()


def can_show_screens(environ: Mapping[str, str]) -> bool:
    """Whether stdin and stdout are a terminal that knows screens."""
    if sys.stdin is None or sys.stdout is None:
        return False
    named = environ.get("TERM", "")
    return sys.stdin.isatty() and sys.stdout.isatty() and named not in ("", "dumb")


def standard_output(environ: Mapping[str, str]) -> Output:
    """An Output on the process's own streams, which then replace what they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    return Output(sys.stdout, sys.stderr, environ)


def printable(text: str) -> str:
    """``text`` on one line with its control characters spelt out: file names hold any.

    A terminal would take some of them for commands.
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def abandon_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail again."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False
