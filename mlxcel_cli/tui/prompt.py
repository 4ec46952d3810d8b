"""The prompt: a text area that grows, sends, completes, and hands scrolling keys on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static, TextArea

from mlxcel_cli.chat.slash import completed, completions
from mlxcel_cli.plain_text import marked, visible
from mlxcel_cli.tui.keys import PROMPT_KEYS

if TYPE_CHECKING:
    from rich.text import Text

MOST_SHOWN = 12

ALONE_S = 0.5
"""How long a character that is a key too has to stand alone in the prompt: with more it is text."""


class PromptArea(TextArea):
    """Where a message is typed.

    Args:
        continue_characters: gives the characters that continue the last answer, as long as it can
            be continued.
    """

    BINDINGS: ClassVar[list[BindingType]] = list(PROMPT_KEYS)

    @dataclass
    class Sent(Message):
        """The user sent what is typed."""

        text: str

    class EditRequested(Message):
        """The user wants to edit the last turn."""

    class FollowRequested(Message):
        """The user wants to follow the answer again."""

    class ContinueRequested(Message):
        """The user wants the answer that was cut off to be continued."""

    def __init__(self, continue_characters: Callable[[], frozenset[str]]) -> None:
        super().__init__(id="prompt", show_line_numbers=False, soft_wrap=True)
        self._continue_characters = continue_characters
        self._alone: Timer | None = None

    async def _on_key(self, event: events.Key) -> None:
        """Wait whether a character that is a key too stays alone; the text area takes it in."""
        if self._alone is not None:
            self._alone.stop()
            self._alone = None
        if not self.text and event.character in self._continue_characters():
            self._alone = self.set_timer(ALONE_S, self._continue)

    def _continue(self) -> None:
        self._alone = None
        if self.text in self._continue_characters():
            self.text = ""
            self.post_message(self.ContinueRequested())

    # These keys are handled before the text area sees them, so that characters typed just before
    # may still wait in its queue: the work queues up behind them.

    def action_send(self) -> None:
        """Send what is typed; nothing is not sent."""
        self.call_later(self._send)

    def action_new_line(self) -> None:
        """Begin another line."""
        self.call_later(self._new_line)

    def action_complete(self) -> None:
        """Complete the command or path before the cursor; with neither, move the focus on."""
        self.call_later(self._complete)

    def action_up_or_edit(self) -> None:
        """Move up; in an empty prompt, take the last turn back to edit it."""
        if self.text:
            self.action_cursor_up()
        else:
            self.post_message(self.EditRequested())

    def action_end_or_follow(self) -> None:
        """Go to the end of the line; there already, follow the answer again."""
        if self.cursor_at_end_of_line:
            self.post_message(self.FollowRequested())
        else:
            self.action_cursor_line_end()

    def _send(self) -> None:
        if self.text.strip():
            sent, self.text = self.text, ""
            self.post_message(self.Sent(sent))

    def _new_line(self) -> None:
        start, end = self.selection
        self.replace("\n", start, end)
        self.scroll_cursor_visible()

    def _complete(self) -> None:
        before = self.before_cursor
        if completions(before)[0]:
            self.insert(completed(before))
        else:
            self.screen.focus_next()

    @property
    def before_cursor(self) -> str:
        """The text from the start to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def get_line(self, line_index: int) -> "Text":
        """A line as it is shown: what could steer the terminal is a mark, the text keeps it."""
        line = super().get_line(line_index)
        line.plain = marked(self.document.get_line(line_index))
        return line

    def fill(self, text: str) -> None:
        """Put ``text`` into the prompt, the cursor after it."""
        self.text = text
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """Put ``text`` before what was typed meanwhile."""
        self.fill(f"{text}\n{self.text}" if text and self.text else text or self.text)


class Candidates(Static):
    """What TAB would complete, in a line above the prompt; gone when there is nothing."""

    def show_for(self, before: str) -> None:
        """Show the candidates for the text before the cursor."""
        word, found = completions(before)
        self.display = bool(word and found)
        if self.display:
            more = "  …" if len(found) > MOST_SHOWN else ""
            self.update(visible("  ".join(found[:MOST_SHOWN]) + more))
