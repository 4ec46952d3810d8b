"""What the palette offers: every action of the chat by name, those that can be done now."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from mlxcel_cli.chat.messages import ASSISTANT, code_blocks
from mlxcel_cli.plain_text import visible

if TYPE_CHECKING:
    from mlxcel_cli.tui.app import ChatApp

Action = tuple[str, str, Callable[[], Any]]
"""Title, help and what is called."""


def actions(app: "ChatApp") -> Iterator[Action]:
    """Titles, what they do, and the calls that do it."""
    ask = app.questions
    yield "New chat", "Begin an empty chat", app.action_new_chat
    yield "Help", "Keys and commands", app.action_help
    if app.store is not None:
        yield "Resume chat", "Find a saved chat and go on with it", ask.chats
        yield "Rename chat", "Give this chat another title", ask.rename
    yield "Import chat", "Go on with an OpenAI-shaped messages file", ask.import_file
    yield "System text", "What the model is told before the chat", ask.system
    yield "Sampling", "Temperature, top-p, length and the like", ask.setting
    yield "Switch model", "Load another model", ask.model
    yield "Counts and speed", "Show or hide the details", app.action_details
    yield "Theme", "Change the colours", app.action_change_theme
    yield from _of_chat(app)
    yield from _switches(app)
    yield "Leave", "End mlxcel chat", app.action_leave


def _of_chat(app: "ChatApp") -> Iterator[Action]:
    if not app.session.chat.messages:
        return
    yield "Export chat", "Write this chat to a .md or .json file", app.questions.export
    yield "Answer again", "Write another answer to the last turn", app.action_regenerate
    yield "Edit last turn", "Take the last turn back, to change it", partial(app.command, "/edit")
    if app.session.can_continue and not app.is_remote:
        yield "Go on", "Go on with the answer that was cut off", app.action_continue
    answers = [one.text for one in app.session.chat.messages if one.role == ASSISTANT]
    if answers:
        yield "Copy answer", "Copy the newest answer", partial(_copy, app, answers[-1])
        for number, block in enumerate(code_blocks(answers[-1]), start=1):
            first = block.strip().split("\n")[0]
            about = visible(first) or "an empty block"
            yield f"Copy code block {number}", about, partial(_copy, app, block)


def _switches(app: "ChatApp") -> Iterator[Action]:
    settings = app.session.settings
    if not app.is_remote:
        state = "off" if settings.drafts else "on"
        yield (
            f"Prompt lookup {state}",
            "Draft from the context, which makes edits and extracts faster",
            partial(app.command, f"/lookup {state}"),
        )
    if app.session.model is not None and app.session.model.can_switch_thinking:
        state = "off" if settings.thinking else "on"
        yield (
            f"Thinking {state}",
            "Let the model think first",
            partial(app.command, f"/thinking {state}"),
        )


def _copy(app: "ChatApp", text: str) -> None:
    app.copy_to_clipboard(text)
    app.say("Copied.")
