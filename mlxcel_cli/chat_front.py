"""Opens a chat in the front end that the terminal can show."""

import os

from engine.errors import InvalidParams
from mlxcel_cli.answers import Backend
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.start import ChatCommand, ChatStart, prepare
from mlxcel_cli.output import can_show_screens, standard_output


def chat_in_terminal(command: ChatCommand) -> int:
    """Chat until the user leaves; the exit status.

    Raises:
        EngineError, OSError: it cannot begin; for the program's door to tell.
    """
    output = standard_output(os.environ)
    start = prepare(command, os.environ)
    for warning in start.settings.warnings:
        output.note(f"mlxcel: {warning}")
    is_remote = start.options.url is not None
    if start.options.plain or not can_show_screens(os.environ):
        if start.chooses_chat:
            raise InvalidParams("--resume", _which(command, start))
        # What only one of the two front ends needs, the other need not wait for.
        from mlxcel_cli.repl import chat_lines

        answerer = new_answerer(start)
        try:
            return chat_lines(start, answerer, output, os.environ, is_remote=is_remote)
        finally:
            answerer.close()
    from mlxcel_cli.tui.run import chat_on_screen

    return chat_on_screen(start, new_answerer, os.environ, is_remote=is_remote)


def _which(command: ChatCommand, start: ChatStart) -> str:
    """What to say where a chat cannot be chosen from a list."""
    unknown = start.model.name if command.words else None
    found = f"no saved chat has the id {unknown!r}; " if unknown is not None else ""
    return f"{found}name the chat's id here; /chats lists them in a chat"


def new_answerer(start: ChatStart) -> Answerer:
    """The engine on this machine, or the server that ``--url`` names."""
    options = start.options
    if options.url is None:
        return Answerer(new_backend())
    from mlxcel_cli.chat.remote import RemoteBackend

    keys = options.api_key or ()
    if len(keys) > 1:
        raise InvalidParams("--api-key", "give one: a server takes one key from a client")
    remote = RemoteBackend(options.url, keys[0] if keys else None)
    return Answerer(remote, interrupt=remote.interrupt)


def new_backend() -> Backend:
    """The real engine; a test puts its own here."""
    from mlxcel_cli.engine_backend import EngineBackend

    return EngineBackend()
