"""What the chat asks its user: a chat, a model, a line of text; and the page of help.

An answer is a slash command, which the app runs. Nothing here is imported before a dialog opens, so
that the first screen need not wait for it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from mlxcel_cli.chat.slash import CommandContext, help_lines
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.failures import failure_text
from mlxcel_cli.local_models import local_model_names
from mlxcel_cli.plain_text import visible
from mlxcel_cli.tui.keys import DIALOG_KEYS, key_names, key_of, keys_of
from mlxcel_cli.tui.status import notice

Keys = Mapping[str, str]
"""Keys that the options file changes, by their action."""

Choices = Callable[[str], Sequence[tuple[str, str]]]
"""What a search finds: the value of each choice and the line that shows it."""


class Dialog(ModalScreen[str | None]):
    """A question; its answer is a command, None where it was closed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        one for one in DIALOG_KEYS if one.action == "dismiss(None)"
    ]


class AskText(Dialog):
    """Asks for one line.

    Args:
        title: what is asked.
        command: what the answer is the argument of.
        keys: named in the hint.
        value: the line's initial text.
        about: lines under the title.
        empty: the command for an empty answer; without one that changes nothing.
    """

    def __init__(
        self, title: str, command: str, keys: Keys, *, value: str = "", about: str = "",
        empty: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._title, self._command = title, command
        self._value, self._about, self._empty = value, about, empty
        self._hint = f"Enter takes it, {key_of('dialog-close', keys)} leaves it"

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
        text = event.value.strip()
        self.dismiss(f"{self._command} {text}" if text else self._empty)


class Choose(Dialog):
    """Asks for one of a list that typing narrows.

    Args:
        title: what is asked.
        command: what the answer is the argument of.
        keys: named in the hint.
        find: the choices for what is typed.
        takes_text: whether what is typed is an answer too, where nothing is chosen.
        deletes: whether a choice can be deleted.
    """

    BINDINGS: ClassVar[list[BindingType]] = list(DIALOG_KEYS)

    @dataclass
    class DeletePressed(Message):
        """The user wants a choice deleted; `refresh_choices` then shows those that are left."""

        dialog: "Choose"
        value: str

    def __init__(
        self, title: str, command: str, keys: Keys, find: Choices, *, takes_text: bool = False,
        deletes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._title, self._command, self._find = title, command, find
        self._takes_text, self._deletes = takes_text, deletes
        also = f"{key_of('dialog-delete', keys)} deletes it, " if deletes else ""
        self._hint = f"Enter takes it, {also}{key_of('dialog-close', keys)} leaves"

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
        self.refresh_choices()

    def on_input_changed(self) -> None:
        """Show what the text finds."""
        self.refresh_choices()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the choice, or with the text."""
        chosen = self._chosen
        if chosen is None and self._takes_text:
            chosen = event.value.strip()
        if chosen:
            self._answer(chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with what was clicked."""
        self._answer(event.option_id or "")

    def action_move(self, by: int) -> None:
        """Move the choice."""
        choices = self.query_one(OptionList)
        if choices.option_count:
            choices.highlighted = ((choices.highlighted or 0) + by) % choices.option_count

    def action_delete(self) -> None:
        """Have the choice deleted."""
        if self._deletes and self._chosen is not None:
            self.post_message(self.DeletePressed(self, self._chosen))

    def refresh_choices(self) -> None:
        """Show what the typed text finds now."""
        choices = self.query_one(OptionList)
        choices.clear_options()
        try:
            found = self._find(self.query_one(Input).value)
        except OSError as error:
            notice(self, failure_text(error), "error")
            found = ()
        choices.add_options(Option(Content(visible(line)), id=value) for value, line in found)
        if choices.option_count:
            choices.highlighted = 0

    @property
    def _chosen(self) -> str | None:
        choices = self.query_one(OptionList)
        if choices.highlighted is None:
            return None
        return choices.get_option_at_index(choices.highlighted).id

    def _answer(self, value: str) -> None:
        self.dismiss(f"{self._command} {value}")


class Help(Dialog):
    """Keys and commands; the key that opened the page closes it too.

    Args:
        keys: shown, and which one opens the page.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """The page."""
        names = key_names(self._keys)
        width = max(len(key) for key, _ in names)
        lines = ["Keys", "", *(f"{key:<{width}}  {text}" for key, text in names)]
        lines += ["", "Commands", "", *help_lines()]
        lines += ["", f"{key_of('dialog-close', self._keys)} closes this page."]
        with VerticalScroll(classes="dialog tall"):
            yield Static("\n".join(lines), markup=False)

    def on_key(self, event: events.Key) -> None:
        """Let the opening key close it."""
        if event.key in keys_of("help", self._keys):
            event.stop()
            self.dismiss(None)


def chats_dialog(store: ChatStore, keys: Keys) -> Dialog:
    """Which saved chat to continue."""

    def find(text: str) -> Sequence[tuple[str, str]]:
        return [
            (
                one.id,
                f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(one.changed_s))}  {one.title}",
            )
            for one in store.chats(text)
        ]

    return Choose("Saved chats", "/load", keys, find, deletes=True)


def _model(context: CommandContext, keys: Keys) -> Dialog:
    if context.is_remote:
        return AskText("Model", "/model", keys, about="A name that the server knows.")
    names = local_model_names()

    def find(text: str) -> Sequence[tuple[str, str]]:
        return [(name, name) for name in names if text.lower() in name.lower()]

    title = "Model: choose, or type a name, hub id or path"
    return Choose(title, "/model", keys, find, takes_text=True)


def _rename(context: CommandContext, keys: Keys) -> Dialog:
    return AskText("Title", "/rename", keys, value=context.session.chat.title)


def _system(context: CommandContext, keys: Keys) -> Dialog:
    value = context.session.settings.system
    return AskText("System text", "/system", keys, value=value, empty="/system none")


def _export(_: CommandContext, keys: Keys) -> Dialog:
    return AskText("Export to", "/save", keys, value="chat.md", about="Named .json it is JSON.")


def _import(_: CommandContext, keys: Keys) -> Dialog:
    return AskText("Import", "/load", keys, about="A JSON file of OpenAI-shaped messages.")


def _setting(context: CommandContext, keys: Keys) -> Dialog:
    session = context.session
    lines = [f"{name} = {value}" for name, value in session.settings.in_force(session.model)]
    about = "\n".join([*lines, "", "Type a name and a value: temperature 0.5"])
    return AskText("Sampling", "/set", keys, about=about)


QUESTIONS: Mapping[str, Callable[[CommandContext, Keys], Dialog]] = MappingProxyType(
    {
        "model": _model,
        "rename": _rename,
        "system": _system,
        "export": _export,
        "import": _import,
        "setting": _setting,
    }
)
"""What asks for the argument of a command, by the name that the palette has for it."""
