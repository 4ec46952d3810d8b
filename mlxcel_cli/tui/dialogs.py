"""Questions over the chat: one line of text, a choice from a list, and the page of help."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from mlxcel_cli.plain_text import visible
from mlxcel_cli.tui.keys import DIALOG_KEYS

Choices = Callable[[str], Sequence[tuple[str, str]]]
"""What a text finds: the value of each choice and the line that shows it."""


class Dialog(ModalScreen[str | None]):
    """A question; Esc answers it with None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        one for one in DIALOG_KEYS if one.action == "dismiss(None)"
    ]


class AskText(Dialog):
    """Asks for one line.

    Args:
        title: what is asked.
        value: what stands there at first.
        about: lines under the title.
        hint: the line at the end, which tells the keys.
    """

    def __init__(self, title: str, value: str, about: str, hint: str) -> None:
        super().__init__()
        self._title, self._value, self._about, self._hint = title, value, about, hint

    def compose(self) -> ComposeResult:
        """Title and input."""
        with Vertical(classes="dialog"):
            yield Static(self._title, markup=False, classes="title")
            if self._about:
                yield Static(visible(self._about), markup=False)
            yield Input(visible(self._value))
            yield Static(self._hint, markup=False, classes="hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the text."""
        self.dismiss(event.value)


class Choose(Dialog):
    """Asks for one of a list that typing narrows.

    Args:
        title: what is asked.
        find: the choices for what is typed.
        hint: the line at the end, which tells the keys.
        takes_text: whether what is typed is an answer too, where nothing is chosen.
        delete: called for the choice to delete; None: none can be.
    """

    BINDINGS: ClassVar[list[BindingType]] = list(DIALOG_KEYS)

    def __init__(
        self,
        title: str,
        find: Choices,
        hint: str,
        *,
        takes_text: bool = False,
        delete: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._title, self._find, self._hint = title, find, hint
        self._takes_text, self._delete = takes_text, delete

    def compose(self) -> ComposeResult:
        """Title, input and list."""
        with Vertical(classes="dialog"):
            yield Static(self._title, markup=False, classes="title")
            yield Input(placeholder="type to search")
            yield OptionList()
            yield Static(self._hint, markup=False, classes="hint")

    def on_mount(self) -> None:
        """Show all choices."""
        self.query_one(OptionList).can_focus = False
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show what the text finds."""
        self._list(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the choice, or with the text."""
        chosen = self._chosen
        if chosen is None and self._takes_text and event.value.strip():
            chosen = event.value.strip()
        if chosen is not None:
            self.dismiss(chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with what was clicked."""
        self.dismiss(event.option_id)

    def action_move(self, by: int) -> None:
        """Move the choice."""
        choices = self.query_one(OptionList)
        if choices.option_count:
            choices.highlighted = ((choices.highlighted or 0) + by) % choices.option_count

    def action_delete(self) -> None:
        """Delete the choice."""
        chosen = self._chosen
        if self._delete is not None and chosen is not None:
            self._delete(chosen)
            self._list(self.query_one(Input).value)

    @property
    def _chosen(self) -> str | None:
        choices = self.query_one(OptionList)
        if choices.highlighted is None:
            return None
        return choices.get_option_at_index(choices.highlighted).id

    def _list(self, text: str) -> None:
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(
            Option(Content(visible(line)), id=value) for value, line in self._find(text)
        )
        if choices.option_count:
            choices.highlighted = 0


class Help(Dialog):
    """Keys and commands.

    Args:
        lines: the page.
        key: the key that opened it closes it too.
    """

    def __init__(self, lines: Sequence[str], key: str) -> None:
        super().__init__()
        self._lines, self._key = lines, key

    def compose(self) -> ComposeResult:
        """The page."""
        with VerticalScroll(classes="dialog tall"):
            yield Static("\n".join(self._lines), markup=False)

    def on_mount(self) -> None:
        """Let the opening key close it."""
        self._bindings.bind(self._key, "dismiss(None)", "Close")
