"""The details panel: counts and speed of each turn, and how they went over the chat."""

from textual.widgets import Static

from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.stats import comparison, plots, table
from mlxcel_cli.plain_text import visible

MOST_TURNS = 9
"""Turns that the table shows; the plots go further back."""


class Details(Static):
    """Hidden until it is asked for; text blocks, so that it reads the same without colours."""

    def __init__(self) -> None:
        super().__init__("", markup=False, id="details")
        self.display = False
        self._session: ChatSession | None = None

    def show(self, session: ChatSession) -> None:
        """Show the chat's numbers as they are."""
        self._session = session
        self.update("\n".join(details_lines(session, self.size.width or self.app.size.width - 2)))

    def on_resize(self) -> None:
        """Choose anew what fits."""
        if self._session is not None:
            self.show(self._session)


def details_lines(session: ChatSession, columns: int) -> list[str]:
    """The panel's text: plots first, since a low window cuts off its end.

    Args:
        session: whose chat.
        columns: the room of a line.
    """
    names, *turns = [*table(session.chat, columns)] or ["No answers yet."]
    chat = session.chat
    lines = [*plots(chat, columns), *comparison(chat), names, *turns[-MOST_TURNS:]]
    if session.lookup_refused:
        lines.append(visible(f"prompt lookup {session.lookup_refused}"))
    return lines
