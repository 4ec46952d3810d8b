"""Opens a chat in the front end that the terminal can show."""

import os
import time

from engine.errors import InvalidParams
from mlxcel_cli.answers import Backend
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.start import ChatStart, prepare
from mlxcel_cli.chat.store import BETWEEN_TRIES_S, BUSY_S
from mlxcel_cli.command_lines import ChatCommand
from mlxcel_cli.failures import failure_text
from mlxcel_cli.output import Output, can_show_screens, standard_output


def chat_in_terminal(command: ChatCommand) -> int:
    """Chat until the user leaves; the exit status.

    Raises:
        EngineError, OSError: it cannot begin; the program's entry point reports it.
    """
    output = standard_output(os.environ)
    start = prepare(command, os.environ)
    for warning in start.settings.warnings:
        output.note(f"mlxcel: {warning}")
    try:
        return _chat(command, start, output)
    finally:
        save_rest(start.session, output)


def save_rest(session: ChatSession, output: Output, *, patience_s: float = BUSY_S) -> None:
    """Save what could not be saved during the chat; report what still cannot be."""
    if session.save_again():
        return
    end = time.monotonic() + patience_s
    try:
        if session.waits_for_file:
            output.note("mlxcel: saving the chat waits for another program; Ctrl-C stops waiting")
        while session.waits_for_file and time.monotonic() < end:
            time.sleep(BETWEEN_TRIES_S)
            session.save_again()
    finally:
        if session.unsaved is not None:
            problem = failure_text(session.unsaved)
            output.note(f"mlxcel: the newest messages are not saved: {problem}")


def _chat(command: ChatCommand, start: ChatStart, output: Output) -> int:
    if start.options.plain or not can_show_screens(os.environ):
        if start.chooses_chat:
            raise InvalidParams("--resume", _which(command, start))
        # What only one of the two front ends needs, the other need not wait for.
        from mlxcel_cli.repl import chat_lines

        answerer = new_answerer(start)
        try:
            return chat_lines(start, answerer, output, os.environ)
        finally:
            answerer.close()
    from mlxcel_cli.tui.run import chat_on_screen

    return chat_on_screen(start, new_answerer, os.environ)


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
