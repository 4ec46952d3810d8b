"""The details panel: counts and speed of each turn, and how they went over the chat."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Sparkline, Static

from mlxcel_cli.chat.messages import ASSISTANT
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.stats_text import stats_lines


class Details(Vertical):
    """Hidden until it is asked for."""

    def __init__(self) -> None:
        super().__init__(id="details")
        self.display = False
        self._table = Static("", markup=False)
        self._speed = Sparkline([], id="speed")
        self._heading = Static("accepted part of drafts by turn", classes="plot")
        self._accepted = Sparkline([], id="accepted")

    def compose(self) -> ComposeResult:
        """Table and plots."""
        yield self._table
        yield Static("tokens/s by turn", classes="plot")
        yield self._speed
        yield self._heading
        yield self._accepted

    def show(self, session: ChatSession) -> None:
        """Show the chat's numbers as they are."""
        numbers = [one.numbers for one in session.chat.messages if one.role == ASSISTANT]
        self._table.update("\n".join([*stats_lines(session)][-10:]))
        self._speed.data = [one.tokens_per_s for one in numbers]
        self._heading.display = self._accepted.display = any(one.drafted_tokens for one in numbers)
        self._accepted.data = [
            one.accepted_tokens / one.drafted_tokens if one.drafted_tokens else 0.0
            for one in numbers
        ]
