"""What is shown around the conversation: notices, the line at the bottom, the details panel."""

from collections.abc import Sequence
from typing import Any

from textual.app import App
from textual.notifications import SeverityLevel
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.stats import comparison, context_text, plots, speed_parts, table
from mlxcel_cli.plain_text import visible

SEPARATOR = " · "

MOST_TURNS = 9
"""Turns that the details' table shows; the plots go further back."""


def notice(source: App[Any] | Widget, text: str, severity: SeverityLevel = "information") -> None:
    """Show a notice for a while, verbatim: never read as markup."""
    source.notify(visible(text), severity=severity, markup=False)


class StatusLine(Static):
    """Model, speed, context, device: parts from important to less, as many as fit.

    Args:
        session: whose numbers.
    """

    parts: reactive[tuple[str, ...]] = reactive(())

    def __init__(self, session: ChatSession) -> None:
        super().__init__("", markup=False, id="status")
        self._session = session

    def show(self, loading: str) -> None:
        """Show how things are now.

        Args:
            loading: how far a load is; empty where none runs.
        """
        session, model = self._session, self._session.model
        lookup = ""
        if session.settings.drafts:
            lookup = f"lookup {session.lookup_refused}" if session.lookup_refused else "lookup on"
        self.parts = (
            loading or ("no model" if model is None else model.name),
            *speed_parts(session.answer),
            context_text(session),
            "" if model is None else model.device,
            lookup,
        )

    def watch_parts(self) -> None:
        """Show the new parts."""
        text = fitting([visible(part) for part in self.parts], self.size.width - 2)
        # It has one line, whatever it says.
        self.update(text, layout=False)

    def on_resize(self) -> None:
        """Choose anew what fits."""
        self.watch_parts()


def fitting(parts: Sequence[str], columns: int) -> str:
    """As many parts as fit, the first one always, cut if it must be."""
    shown = ""
    for part in filter(None, parts):
        longer = f"{shown}{SEPARATOR}{part}" if shown else part
        if shown and len(longer) > columns:
            continue
        shown = longer
    return shown[: max(columns, 1)]


class Details(Static):
    """Counts and speed of each turn; hidden at first. Text blocks read the same without colours.

    Args:
        session: whose numbers.
    """

    def __init__(self, session: ChatSession) -> None:
        super().__init__("", markup=False, id="details")
        self.display = False
        self._session = session

    def show(self) -> None:
        """Show the numbers as they are, if the panel is open."""
        if self.display:
            columns = self.size.width or self.app.size.width - 2
            self.update("\n".join(details_lines(self._session, columns)))

    def on_resize(self) -> None:
        """Choose anew what fits."""
        self.show()


def details_lines(session: ChatSession, columns: int) -> list[str]:
    """The panel's text: plots first, since a low window cuts off its end.

    Args:
        session: whose chat.
        columns: the room of a line.
    """
    chat = session.chat
    names, *turns = [*table(chat, columns)] or ["No answers yet."]
    lines = [*plots(chat, columns), *comparison(chat), names, *turns[-MOST_TURNS:]]
    if session.lookup_refused:
        lines.append(visible(f"prompt lookup {session.lookup_refused}"))
    return lines
