"""What the screen asks the user: which chat, which model, a title, a file, a setting.

The dialogs' widgets are imported when a question is asked; the first screen need not wait for them.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from mlxcel_cli.chat.slash import help_lines
from mlxcel_cli.failures import failure_text
from mlxcel_cli.local_models import local_model_names
from mlxcel_cli.tui.keys import key_names

if TYPE_CHECKING:
    from mlxcel_cli.tui.app import ChatApp
    from mlxcel_cli.tui.dialogs import Choices


class Questions:
    """Opens dialogs; each answer becomes a command.

    Args:
        app: the screen.
    """

    def __init__(self, app: "ChatApp") -> None:
        self._app = app

    def chats(self) -> None:
        """Which saved chat to go on with."""
        if self._app.store is None:
            self._app.say("Chats are not saved here (--no-save).")
            return
        self._ask("Saved chats", self._find_chats, "/load", delete=self._delete)

    def model(self) -> None:
        """Which model to load."""
        if self._app.is_remote:
            self._text("Model", "/model", about="A name that the server knows.")
            return
        names = local_model_names()

        def find(text: str) -> Sequence[tuple[str, str]]:
            return [(name, name) for name in names if text.lower() in name.lower()]

        self._ask("Model: choose, or type a name, hub id or path", find, "/model", takes_text=True)

    def rename(self) -> None:
        """The chat's title."""
        self._text("Title", "/rename", value=self._app.session.chat.title)

    def system(self) -> None:
        """The system text."""
        self._text(
            "System text", "/system", value=self._app.session.settings.system, empty="/system none"
        )

    def export(self) -> None:
        """The file to write the chat to."""
        self._text("Export to", "/save", value="chat.md", about="Named .json it is JSON.")

    def import_file(self) -> None:
        """The file to read a chat from."""
        self._text("Import", "/load", about="A JSON file of OpenAI-shaped messages.")

    def setting(self) -> None:
        """A setting and its value."""
        session = self._app.session
        lines = [f"{name} = {value}" for name, value in session.settings.in_force(session.model)]
        about = "\n".join([*lines, "", "Type a name and a value: temperature 0.5"])
        self._text("Sampling", "/set", about=about)

    def help(self) -> None:
        """Keys and commands; nothing is asked."""
        from mlxcel_cli.tui.dialogs import Help

        names = key_names(self._app.chosen_keys)
        width = max(len(key) for key, _ in names)
        keys = [f"{key:<{width}}  {text}" for key, text in names]
        lines = [
            "Keys",
            "",
            *keys,
            "",
            "Commands",
            "",
            *help_lines(),
            "",
            self._leaves("closes this page."),
        ]
        self._app.push_screen(Help(lines, self._app.chosen_keys.get("help", "f1")))

    def _find_chats(self, text: str) -> Sequence[tuple[str, str]]:
        assert self._app.store is not None
        try:
            found = self._app.store.chats(text)
        except OSError as error:
            self._app.say(failure_text(error), is_error=True)
            return []
        return [
            (
                one.id,
                f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(one.changed_s))}  {one.title}",
            )
            for one in found
        ]

    def _delete(self, chat_id: str) -> None:
        self._app.call_later(self._app.command, f"/delete {chat_id}")

    def _ask(
        self,
        title: str,
        find: "Choices",
        command: str,
        *,
        takes_text: bool = False,
        delete: Callable[[str], None] | None = None,
    ) -> None:
        from mlxcel_cli.tui.dialogs import Choose

        deletes = "" if delete is None else f"{self._app.key('dialog-delete')} deletes it, "
        hint = f"Enter takes it, {deletes}{self._leaves('leaves')}"
        dialog = Choose(title, find, hint, takes_text=takes_text, delete=delete)
        self._app.push_screen(dialog, self._then(command))

    def _text(
        self, title: str, command: str, *, value: str = "", about: str = "", empty: str = ""
    ) -> None:
        from mlxcel_cli.tui.dialogs import AskText

        hint = f"Enter takes it, {self._leaves('leaves it')}"
        self._app.push_screen(AskText(title, value, about, hint), self._then(command, empty))

    def _leaves(self, does: str) -> str:
        return f"{self._app.key('dialog-close')} {does}"

    def _then(self, command: str, empty: str = "") -> Callable[[str | None], Awaitable[None]]:
        """What an answer does: the command with it."""

        async def then(answer: str | None) -> None:
            if answer is not None and (answer.strip() or empty):
                await self._app.command(f"{command} {answer.strip()}" if answer.strip() else empty)

        return then
