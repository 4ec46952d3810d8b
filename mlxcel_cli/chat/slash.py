"""The slash commands of a chat: their names, what they do, and what TAB completes.

A command changes the session and returns a reply. What needs a model or a screen is named in the
reply; line mode and the TUI do it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType

from engine.errors import InvalidParams
from mlxcel_cli.chat.attachments import complete_path
from mlxcel_cli.chat.chat_file import export, read_messages
from mlxcel_cli.chat.messages import Chat
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.stats import stats_lines
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.paths import typed_path


class FollowUp(Enum):
    """What is left to do after a command."""

    NOTHING = auto()
    REDRAW = auto()
    """The chat is another one, or has changed: show it anew."""
    ANSWER = auto()
    """Answer the chat as it stands."""
    CONTINUE = auto()
    """Continue the last answer."""
    EDIT = auto()
    """Put ``Reply.text`` into the prompt; the chat has changed."""
    LOAD_MODEL = auto()
    """Load the model that ``Reply.text`` names, in place of this one."""
    QUIT = auto()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command replies, and what is left to do."""

    text: str = ""
    follow_up: FollowUp = FollowUp.NOTHING


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What commands work on."""

    session: ChatSession
    store: ChatStore | None
    is_remote: bool = False

    @property
    def can_continue(self) -> bool:
        """Whether the last answer was cut off and can be continued; a server's cannot."""
        return self.session.can_continue and not self.is_remote


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command."""

    name: str
    argument: str
    """How help names what follows it; in brackets where it may be left out."""
    help: str
    run: Callable[[CommandContext, str], Reply]


def is_command(text: str) -> bool:
    """Whether a prompt is a command: one line that begins with a slash, known or not.

    A message that begins so has a space before it, or is quoted in line mode.
    """
    return text.startswith("/") and "\n" not in text.strip()


def run_command(context: CommandContext, text: str) -> Reply:
    """Do what a command says.

    Raises:
        InvalidParams: there is no such command, or it cannot be done; nothing has changed.
        OSError: a file cannot be read or written.
    """
    name, _, argument = text.strip().partition(" ")
    name = {"/?": "/help", "/quit": "/bye", "/exit": "/bye", "/new": "/clear"}.get(name, name)
    command = COMMANDS.get(name)
    if command is None:
        raise InvalidParams(name, "is no command here; /help lists them. Nothing was sent")
    # A command that reads the file must find in it what waits to be saved.
    context.session.save_again()
    return command.run(context, argument.strip())


def completions(before: str) -> tuple[str, list[str]]:
    """The word before the cursor that can be completed, and what it may become."""
    if before.startswith("/") and " " not in before and "\n" not in before:
        return before, [name for name in COMMANDS if name.startswith(before)]
    word = before.rsplit(maxsplit=1)[-1] if before and not before[-1].isspace() else ""
    if word.startswith("@"):
        return word, [f"@{path}" for path in complete_path(word[1:])]
    return "", []


def completed(before: str) -> str:
    """What a TAB adds: as much as all candidates share, a space after the only one."""
    word, found = completions(before)
    if not found:
        return ""
    first, last = min(found), max(found)
    same = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first)
    )
    added = first[len(word) : same]
    whole = len(found) == 1 and not found[0].endswith("/")
    return added + " " if whole else added


def help_lines() -> Sequence[str]:
    """One line a command."""
    heads = {name: f"{name} {one.argument}".rstrip() for name, one in COMMANDS.items()}
    width = max(len(head) for head in heads.values())
    return [f"{heads[name]:<{width}}  {one.help}" for name, one in COMMANDS.items()]


def _help(_: CommandContext, __: str) -> Reply:
    lines = [*help_lines(), '@path in a prompt attaches a file; @"a path" may hold spaces.']
    return Reply("\n".join(lines))


def _clear(context: CommandContext, _: str) -> Reply:
    context.session.start_new()
    return Reply("A new chat.", FollowUp.REDRAW)


def _system(context: CommandContext, text: str) -> Reply:
    if text:
        context.session.set_system("" if text == "none" else text)
        return Reply("The system text is set." if text != "none" else "There is no system text.")
    return Reply(context.session.settings.system or "There is no system text.")


def _model(context: CommandContext, name: str) -> Reply:
    model = context.session.model
    if not name:
        return Reply("No model is loaded." if model is None else f"{model.name} ({model.path})")
    return Reply(name, FollowUp.LOAD_MODEL)


def _save(context: CommandContext, path: str) -> Reply:
    if not path:
        if context.store is None:
            raise InvalidParams("/save", "this chat is not saved; /save FILE writes it to a file")
        return Reply(f"Chats are saved as they happen; this one is {context.session.chat.id}.")
    return Reply(f"Written to {export(context.session.chat, Path(path))}.")


def _load(context: CommandContext, what: str) -> Reply:
    if not what:
        raise InvalidParams("/load", "name a chat's id or a file of messages")
    path = typed_path("/load", what)
    if path.is_dir():
        raise InvalidParams("/load", f"{what} is a folder; name a file or a chat's id")
    if path.is_file():
        chat_id = "" if context.store is None else context.store.new_id()
        chat = read_messages(path, chat_id)
    elif context.store is None:
        raise InvalidParams("/load", f"there is no file {what}, and chats are not saved here")
    else:
        chat = _found("/load", what, context.store.load)
    context.session.resume(chat)
    return Reply(_described(chat), FollowUp.REDRAW)


def _found(command: str, chat_id: str, find: Callable[[str], Chat]) -> Chat:
    """The chat by its id; the error says how ``command`` finds one."""
    try:
        return find(chat_id)
    except InvalidParams as error:
        raise InvalidParams(command, f"{error.problem}; /chats lists them") from None


def _chats(context: CommandContext, search: str) -> Reply:
    if context.store is None:
        raise InvalidParams("/chats", "chats are not saved here")
    found = context.store.chats(search, limit=20)
    lines = [f"{one.id}  {one.title} ({one.messages} messages)" for one in found]
    return Reply("\n".join(lines) or "No saved chats.")


def _rename(context: CommandContext, title: str) -> Reply:
    if not title:
        raise InvalidParams("/rename", "give the new title")
    context.session.rename(title)
    return Reply(f"This chat is {title!r}.")


def _delete(context: CommandContext, chat_id: str) -> Reply:
    if context.store is None:
        raise InvalidParams("/delete", "chats are not saved here")
    if not chat_id:
        raise InvalidParams("/delete", "name the chat's id; /chats lists them")
    chat = _found("/delete", chat_id, context.store.peek)
    context.store.delete(chat.id)
    if chat.id == context.session.chat.id:
        context.session.start_new()
        return Reply(f"{chat.title!r} is deleted.", FollowUp.REDRAW)
    return Reply(f"{chat.title!r} is deleted.")


def _set(context: CommandContext, text: str) -> Reply:
    name, _, value = text.replace("=", " ", 1).partition(" ")
    if not name:
        lines = [
            f"{key} = {one}"
            for key, one in context.session.settings.in_force(context.session.model)
        ]
        return Reply("\n".join(lines))
    return Reply(context.session.settings.set(name, value))


def _stats(context: CommandContext, _: str) -> Reply:
    return Reply("\n".join(stats_lines(context.session)))


def _retry(context: CommandContext, _: str) -> Reply:
    if not context.session.chat.messages:
        raise InvalidParams("/retry", "there is nothing to answer yet")
    return Reply(follow_up=FollowUp.ANSWER)


def _continue(context: CommandContext, _: str) -> Reply:
    if not context.can_continue:
        raise InvalidParams("/continue", "the last answer was not cut off here")
    return Reply(follow_up=FollowUp.CONTINUE)


def _edit(context: CommandContext, _: str) -> Reply:
    if context.session.chat.last_asked is None:
        raise InvalidParams("/edit", "there is no turn to edit yet")
    return Reply(context.session.take_back(), FollowUp.EDIT)


def _lookup(context: CommandContext, text: str) -> Reply:
    if context.is_remote:
        raise InvalidParams("/lookup", "the server decides here whether to draft")
    settings = context.session.settings
    settings.switch_lookup(on=_switch("/lookup", text, settings.drafts))
    return Reply(f"Prompt lookup is {'on' if settings.drafts else 'off'}.")


def _thinking(context: CommandContext, text: str) -> Reply:
    if context.session.model is None or not context.session.model.can_switch_thinking:
        raise InvalidParams("/thinking", "this model's template has no switch for it")
    settings = context.session.settings
    settings.thinking = _switch("/thinking", text, settings.thinking)
    return Reply(f"Thinking is {'on' if settings.thinking else 'off'}.")


def _image(_: CommandContext, __: str) -> Reply:
    raise InvalidParams("/image", "only text can be read here; nothing was sent")


def _bye(_: CommandContext, __: str) -> Reply:
    return Reply(follow_up=FollowUp.QUIT)


def _switch(name: str, text: str, now: bool) -> bool:  # noqa: FBT001 - the value that is switched
    if text in ("on", "off"):
        return text == "on"
    if text:
        raise InvalidParams(name, f"is on or off, not {text!r}")
    return not now


def _described(chat: Chat) -> str:
    return f"{chat.title or 'A chat'}: {len(chat.messages)} messages."


COMMANDS = MappingProxyType(
    {
        one.name: one
        for one in (
            SlashCommand("/help", "", "this list", _help),
            SlashCommand("/clear", "", "a new chat", _clear),
            SlashCommand(
                "/system", "[TEXT]", "show or set the system text; none removes it", _system
            ),
            SlashCommand("/model", "[NAME]", "show the model, or load another", _model),
            SlashCommand("/set", "[NAME VALUE]", "show or change sampling and length", _set),
            SlashCommand("/lookup", "[on|off]", "prompt lookup: draft from the context", _lookup),
            SlashCommand("/thinking", "[on|off]", "let the model think first", _thinking),
            SlashCommand("/stats", "", "counts and rates of this chat's answers", _stats),
            SlashCommand("/retry", "", "answer the last turn again", _retry),
            SlashCommand("/continue", "", "continue an answer that was cut off", _continue),
            SlashCommand("/edit", "", "take the last turn back, to change it", _edit),
            SlashCommand("/chats", "[TEXT]", "saved chats, those with TEXT in them", _chats),
            SlashCommand("/load", "ID|FILE", "continue a saved chat or a messages file", _load),
            SlashCommand("/save", "[FILE]", "write this chat to a .md or .json file", _save),
            SlashCommand("/rename", "TITLE", "give this chat another title", _rename),
            SlashCommand("/delete", "ID", "delete a saved chat", _delete),
            SlashCommand("/image", "FILE", "not possible here: text only", _image),
            SlashCommand("/bye", "", "leave", _bye),
        )
    }
)
"""By name, in the order help shows them."""
