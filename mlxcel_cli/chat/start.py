"""From a command line to a chat: which model, which saved chat, which files, which settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidParams
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.chat.attachments import mention
from mlxcel_cli.chat.chat_file import read_messages
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.settings import ChatSettings
from mlxcel_cli.chat.slash import CommandContext
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.chat_options import ChatOptions
from mlxcel_cli.command_lines import ChatCommand
from mlxcel_cli.config import Settings, load_settings
from mlxcel_cli.engine_requests import model_request
from mlxcel_cli.lookup_options import (
    check_dependent_options,
    read_lookup_files,
    speculation_params,
)
from mlxcel_cli.paths import typed_path
from mlxcel_cli.prompt_input import STDIN

CHATS_FILE = "chats.sqlite3"

LEAST_ID_CHARACTERS = 4
"""Of a saved chat's id on the command line; shorter words are model names."""


@dataclass(frozen=True, slots=True)
class ChatStart:
    """Everything a front end needs to begin."""

    session: ChatSession
    store: ChatStore | None
    model: ModelRequest
    options: ChatOptions
    settings: Settings
    draft: str
    """What stands in the prompt at first: the files named on the command line."""
    chooses_chat: bool
    """Whether the user wants to choose one of the saved chats."""

    @property
    def context(self) -> CommandContext:
        """What commands work on."""
        return CommandContext(self.session, self.store, is_remote=self.options.url is not None)


def prepare(command: ChatCommand, environ: Mapping[str, str]) -> ChatStart:
    """Settle everything that can be settled before a model is loaded.

    Raises:
        InvalidParams: an option, a setting or a word is wrong; names it.
        OSError: a file cannot be read.
    """
    settings = load_settings(environ, command="chat", config=command.chat.config)
    filled = settings.fill(command)
    check_dependent_options(command.lookup, filled.lookup)
    options = filled.chat
    store = None if options.save is False else ChatStore(settings.data_home / CHATS_FILE)
    words = _Words.sorted(filled.words or (), store if options.resume else None)
    chat_settings = _chat_settings(filled)
    chat_settings.request(None)
    session = ChatSession(store, chat_settings)
    _resume(session, store, options, words.chat_id)
    if store is not None:
        # From here on keys and answers would wait too.
        store.wait_s = 0.0
    return ChatStart(
        session=session,
        store=store,
        model=model_request(command.model, settings, word=words.model),
        options=options,
        settings=settings,
        draft="".join(f"{mention(path)} " for path in words.files),
        chooses_chat=bool(options.resume) and words.chat_id is None,
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """What the words of the command line are: a model, a chat's id, files to attach."""

    model: str | None
    chat_id: str | None
    files: tuple[Path, ...]

    @classmethod
    def sorted(cls, words: Sequence[str], store: ChatStore | None) -> "_Words":
        """Sort the words; ``store`` is given where a chat's id may be among them."""
        models: list[str] = []
        files: list[Path] = []
        chat_id: str | None = None
        for word in words:
            path = typed_path("MODEL", word)
            if path.is_file() and path.suffix != ".gguf":
                files.append(path)
            elif store is not None and chat_id is None and _is_chat(store, word):
                chat_id = word
            else:
                models.append(word)
        if len(models) > 1:
            raise InvalidParams(
                "MODEL", f"give one model; {models[0]!r} and {models[1]!r} are no files"
            )
        return cls(models[0] if models else None, chat_id, tuple(files))


def _is_chat(store: ChatStore, word: str) -> bool:
    if len(word) < LEAST_ID_CHARACTERS or not store.path.exists():
        return False
    try:
        store.peek(word)
    except InvalidParams:
        return False
    return True


def _chat_settings(command: ChatCommand) -> ChatSettings:
    speculation_params(command.lookup)
    return ChatSettings(
        sampling=command.sampling,
        length=command.length,
        lookup=command.lookup,
        lookup_texts=read_lookup_files(command.lookup.lookup_file),
        system=command.chat.system or "",
        context_tokens=command.model.ctx_size,
    )


def _resume(
    session: ChatSession, store: ChatStore | None, options: ChatOptions, chat_id: str | None
) -> None:
    wanted = {
        "--messages": options.messages is not None,
        "--resume": bool(options.resume),
        "--continue": bool(options.continue_newest),
    }
    given = [name for name, is_given in wanted.items() if is_given]
    if len(given) > 1:
        raise InvalidParams(given[0], f"excludes {given[1]}: both name the chat to continue")
    if options.messages is not None:
        if str(options.messages) == STDIN:
            raise InvalidParams("--messages", "name a file: stdin is where you chat")
        session.resume(read_messages(options.messages, session.chat.id))
    elif given and store is None:
        raise InvalidParams(given[0], "needs saved chats, but --no-save leaves them alone")
    elif chat_id is not None and store is not None:
        session.resume(store.load(chat_id))
    elif options.continue_newest and store is not None:
        newest = store.newest()
        if newest is None:
            raise InvalidParams("--continue", "there is no saved chat yet")
        session.resume(newest)
    if given and options.system:
        session.set_system(options.system)
