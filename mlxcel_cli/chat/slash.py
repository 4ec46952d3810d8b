"""The commands typed into a chat: what they are called, what they do, what is said of it.

A command changes the session and gives a reply; what needs a model or a screen is named in the
reply and left to line mode or the TUI.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType

from engine.errors import InvalidParams
from mlxcel_cli.chat.exchange import export, read_messages
from mlxcel_cli.chat.messages import Chat
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.stats_text import stats_lines
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.paths import typed_path


class Then(Enum):
    """What is left to do after a command."""

    NOTHING = auto()
    REDRAW = auto()
    """The chat is another one, or has changed: show it anew."""
    ANSWER = auto()
    """Answer the chat as it stands."""
    CONTINUE = auto()
    """Go on with the last answer."""
    EDIT = auto()
    """Put ``Reply.text`` into the prompt; the chat has changed."""
    LOAD_MODEL = auto()
    """Load the model that ``Reply.text`` names, in place of this one."""
    QUIT = auto()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command says, and what is left to do."""

    text: str = ""
    then: Then = Then.NOTHING


@dataclass(frozen=True, slots=True)
class Desk:
    """What commands work on."""

    session: ChatSession
    store: ChatStore | None
    is_remote: bool = False


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command."""

    name: str
    argument: str
    """How help names what follows it; in brackets where it may be left out."""
    help: str
    run: Callable[[Desk, str], Reply]


def is_command(text: str) -> bool:
    """Whether a prompt is a command: one line that begins with a slash, known or not.

    A message that begins so has a space before it, or is quoted in line mode.
    """
    return text.startswith("/") and "\n" not in text.strip()


def run_command(desk: Desk, text: str) -> Reply:
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
    desk.session.save_again()
    return command.run(desk, argument.strip())


def complete_command(start: str) -> list[str]:
    """Commands that begin with ``start``."""
    return [name for name in COMMANDS if name.startswith(start)]


def help_lines() -> Sequence[str]:
    """One line a command."""
    heads = {name: f"{name} {one.argument}".rstrip() for name, one in COMMANDS.items()}
    width = max(len(head) for head in heads.values())
    return [f"{heads[name]:<{width}}  {one.help}" for name, one in COMMANDS.items()]


def _help(_: Desk, __: str) -> Reply:
    lines = [*help_lines(), '@path in a prompt attaches a file; @"a path" may hold spaces.']
    return Reply("\n".join(lines))


def _clear(desk: Desk, _: str) -> Reply:
    desk.session.start_new()
    return Reply("A new chat.", Then.REDRAW)


def _system(desk: Desk, text: str) -> Reply:
    if text:
        desk.session.set_system("" if text == "none" else text)
        return Reply("The system text is set." if text != "none" else "There is no system text.")
    return Reply(desk.session.knobs.system or "There is no system text.")


def _model(desk: Desk, name: str) -> Reply:
    model = desk.session.model
    if not name:
        return Reply("No model is loaded." if model is None else f"{model.name} ({model.path})")
    return Reply(name, Then.LOAD_MODEL)


def _save(desk: Desk, path: str) -> Reply:
    if not path:
        if desk.store is None:
            raise InvalidParams("/save", "this chat is not saved; /save FILE writes it to a file")
        return Reply(f"Chats are saved as they happen; this one is {desk.session.chat.id}.")
    return Reply(f"Written to {export(desk.session.chat, Path(path))}.")


def _load(desk: Desk, what: str) -> Reply:
    if not what:
        raise InvalidParams("/load", "name a chat's id or a file of messages")
    path = typed_path("/load", what)
    if path.is_dir():
        raise InvalidParams("/load", f"{what} is a folder; name a file or a chat's id")
    if path.is_file():
        chat_id = "" if desk.store is None else desk.store.new_id()
        chat = read_messages(path, chat_id)
    elif desk.store is None:
        raise InvalidParams("/load", f"there is no file {what}, and chats are not saved here")
    else:
        chat = _found("/load", what, desk.store.load)
    desk.session.resume(chat)
    return Reply(_described(chat), Then.REDRAW)


def _found(command: str, chat_id: str, find: Callable[[str], Chat]) -> Chat:
    """The chat by its id; who typed ``command`` is told how to find one."""
    try:
        return find(chat_id)
    except InvalidParams as error:
        raise InvalidParams(command, f"{error.problem}; /chats lists them") from None


def _chats(desk: Desk, search: str) -> Reply:
    if desk.store is None:
        raise InvalidParams("/chats", "chats are not saved here")
    found = desk.store.chats(search, limit=20)
    lines = [f"{one.id}  {one.title} ({one.messages} messages)" for one in found]
    return Reply("\n".join(lines) or "No saved chats.")


def _rename(desk: Desk, title: str) -> Reply:
    if not title:
        raise InvalidParams("/rename", "give the new title")
    desk.session.rename(title)
    return Reply(f"This chat is {title!r}.")


def _delete(desk: Desk, chat_id: str) -> Reply:
    if desk.store is None:
        raise InvalidParams("/delete", "chats are not saved here")
    if not chat_id:
        raise InvalidParams("/delete", "name the chat's id; /chats lists them")
    chat = _found("/delete", chat_id, desk.store.peek)
    desk.store.delete(chat.id)
    if chat.id == desk.session.chat.id:
        desk.session.start_new()
        return Reply(f"{chat.title!r} is deleted.", Then.REDRAW)
    return Reply(f"{chat.title!r} is deleted.")


def _set(desk: Desk, text: str) -> Reply:
    name, _, value = text.replace("=", " ", 1).partition(" ")
    if not name:
        lines = [f"{key} = {one}" for key, one in desk.session.knobs.in_force(desk.session.model)]
        return Reply("\n".join(lines))
    return Reply(desk.session.knobs.set(name, value))


def _stats(desk: Desk, _: str) -> Reply:
    return Reply("\n".join(stats_lines(desk.session)))


def _retry(desk: Desk, _: str) -> Reply:
    if not desk.session.chat.messages:
        raise InvalidParams("/retry", "there is nothing to answer yet")
    return Reply(then=Then.ANSWER)


def _continue(desk: Desk, _: str) -> Reply:
    if desk.is_remote or not desk.session.can_continue:
        raise InvalidParams("/continue", "the last answer was not cut off here")
    return Reply(then=Then.CONTINUE)


def _edit(desk: Desk, _: str) -> Reply:
    if desk.session.chat.last_asked is None:
        raise InvalidParams("/edit", "there is no turn to edit yet")
    return Reply(desk.session.take_back(), Then.EDIT)


def _lookup(desk: Desk, text: str) -> Reply:
    if desk.is_remote:
        raise InvalidParams("/lookup", "drafting is the server's business here")
    knobs = desk.session.knobs
    knobs.switch_lookup(on=_switch("/lookup", text, knobs.drafts))
    return Reply(f"Prompt lookup is {'on' if knobs.drafts else 'off'}.")


def _thinking(desk: Desk, text: str) -> Reply:
    if desk.session.model is None or not desk.session.model.can_switch_thinking:
        raise InvalidParams("/thinking", "this model's template has no switch for it")
    knobs = desk.session.knobs
    knobs.thinking = _switch("/thinking", text, knobs.thinking)
    return Reply(f"Thinking is {'on' if knobs.thinking else 'off'}.")


def _image(_: Desk, __: str) -> Reply:
    raise InvalidParams("/image", "only text can be read here; nothing was sent")


def _bye(_: Desk, __: str) -> Reply:
    return Reply(then=Then.QUIT)


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
            SlashCommand("/continue", "", "go on with an answer that was cut off", _continue),
            SlashCommand("/edit", "", "take the last turn back, to change it", _edit),
            SlashCommand("/chats", "[TEXT]", "saved chats, those that hold TEXT", _chats),
            SlashCommand("/load", "ID|FILE", "go on with a saved chat or a messages file", _load),
            SlashCommand("/save", "[FILE]", "write this chat to a .md or .json file", _save),
            SlashCommand("/rename", "TITLE", "give this chat another title", _rename),
            SlashCommand("/delete", "ID", "delete a saved chat", _delete),
            SlashCommand("/image", "FILE", "not possible here: text only", _image),
            SlashCommand("/bye", "", "leave", _bye),
        )
    }
)
"""By name, in the order help shows them."""
