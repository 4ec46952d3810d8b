"""Reads messages line by line: one line each, or several between triple quotes."""

FENCE = 3 * '"'


class MessageReader:
    """Puts lines together to messages.

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
