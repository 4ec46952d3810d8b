"""Writes chats as Markdown and JSON, and reads OpenAI-shaped conversations as chats."""

import json
from dataclasses import asdict
from pathlib import Path

from engine.errors import InvalidParams
from mlxcel_cli.chat.messages import ASSISTANT, USER, Chat, ChatMessage
from mlxcel_cli.paths import typed_path
from mlxcel_cli.plain_text import encodable
from mlxcel_cli.prompt_input import parse_messages, utf8_text

NAMES = {USER: "You", ASSISTANT: "Assistant"}


def to_markdown(chat: Chat) -> str:
    """The chat for people: a heading, then each turn under its speaker's name."""
    parts = [f"# {chat.title or 'Chat'}"]
    if chat.model:
        parts.append(f"*{chat.model}*")
    if chat.system:
        parts.append(f"## System\n\n{chat.system}")
    for message in chat.messages:
        parts.append(f"## {NAMES[message.role]}\n\n{message.text.rstrip()}".rstrip())
    return "\n\n".join(parts) + "\n"


def to_json(chat: Chat) -> str:
    """The chat for programs: an OpenAI-shaped ``messages`` array, and details of each message."""
    details = [asdict(one) for one in chat.messages]
    value = {
        "id": chat.id,
        "title": chat.title,
        "model": chat.model,
        "messages": list(chat.for_model()),
        "details": details,
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def from_messages(text: str, chat_id: str) -> Chat:
    """A chat from an OpenAI-shaped messages file, or one that `to_json` wrote.

    Raises:
        InvalidParams: not such a file; names the place.
    """
    chat = Chat(chat_id)
    system: list[str] = []
    for place, message in enumerate(parse_messages(text)):
        role, content = message["role"], str(message["content"])
        if role == "system" and not chat.messages:
            system.append(content)
        elif role == USER:
            chat = chat.asked(content)
        elif role == ASSISTANT:
            chat = chat.answered(ChatMessage(ASSISTANT, content, finish="eos"))
        else:
            raise InvalidParams(
                f"messages[{place}].role", f"must be user or assistant in a chat, not {role!r}"
            )
    return Chat(chat.id, chat.title, "\n\n".join(system), "", chat.messages)


def read_messages(path: Path, chat_id: str) -> Chat:
    """A chat from a file, as `from_messages`.

    Raises:
        InvalidParams: not such a file; names the place.
        OSError: it cannot be read.
    """
    return from_messages(utf8_text(str(path), path.read_bytes()), chat_id)


def export(chat: Chat, path: Path) -> Path:
    """Write the chat to a file: JSON where it is named ``.json``, Markdown otherwise.

    Raises:
        InvalidParams: the file exists already.
        OSError: it cannot be written.
    """
    path = typed_path("/save", str(path))
    content = to_json(chat) if path.suffix == ".json" else to_markdown(chat)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(encodable(content))
    except FileExistsError:
        raise InvalidParams(str(path), "exists already; name another file") from None
    return path
