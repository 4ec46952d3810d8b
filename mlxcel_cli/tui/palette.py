"""What the palette offers: every action of the chat by name, those that can be done now."""

from collections.abc import Iterator

from mlxcel_cli.chat.messages import code_blocks
from mlxcel_cli.chat.slash import CommandContext
from mlxcel_cli.plain_text import visible

Offer = tuple[str, str, str]
"""Title, help, and the action of `ChatApp` that does it, as a key's binding names it."""


def offers(context: CommandContext) -> Iterator[Offer]:
    """What can be done with the chat as it stands."""
    yield "New chat", "Begin an empty chat", "new_chat"
    yield "Help", "Keys and commands", "help"
    if context.store is not None:
        yield "Resume chat", "Find a saved chat and continue it", "chats"
        yield "Rename chat", "Give this chat another title", "ask('rename')"
    yield "Import chat", "Continue an OpenAI-shaped messages file", "ask('import')"
    yield "System text", "Instructions that the model gets before the chat", "ask('system')"
    yield "Sampling", "Temperature, top-p, length and the like", "ask('setting')"
    yield "Switch model", "Load another model", "ask('model')"
    yield "Counts and speed", "Show or hide the details", "details"
    yield "Theme", "Change the colours", "change_theme"
    yield from _of_chat(context)
    yield from _switches(context)
    yield "Leave", "End mlxcel chat", "leave"


def _of_chat(context: CommandContext) -> Iterator[Offer]:
    chat = context.session.chat
    if not chat.messages:
        return
    yield "Export chat", "Write this chat to a .md or .json file", "ask('export')"
    yield "Answer again", "Write another answer to the last turn", "regenerate"
    yield "Edit last turn", "Take the last turn back, to change it", "run('/edit')"
    if context.can_continue:
        yield "Continue answer", "Continue the answer that was cut off", "continue"
    if chat.newest_answer is not None:
        yield "Copy answer", "Copy the newest answer", "copy_answer"
        for number, block in enumerate(code_blocks(chat.newest_answer), start=1):
            first = block.strip().split("\n")[0]
            about = visible(first) or "an empty block"
            yield f"Copy code block {number}", about, f"copy_answer({number})"


def _switches(context: CommandContext) -> Iterator[Offer]:
    settings, model = context.session.settings, context.session.model
    if not context.is_remote:
        state = "off" if settings.drafts else "on"
        yield (
            f"Prompt lookup {state}",
            "Draft from the context, which makes edits and extracts faster",
            f"run('/lookup {state}')",
        )
    if model is not None and model.can_switch_thinking:
        state = "off" if settings.thinking else "on"
        yield f"Thinking {state}", "Let the model think first", f"run('/thinking {state}')"
