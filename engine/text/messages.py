"""Checks the shape of chat messages, and brings them into the one form that templates know."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidParams

Message = Mapping[str, object]
"""A turn: ``role``, ``content`` (a string, text parts, or None with ``tool_calls``), …"""

CheckedMessage = dict[str, Any]
"""A turn after ``check_messages``: role and content are strings, tool_calls well-formed."""

_WORD = re.compile(r"[^\W_]+")

ROLES_RENAMED = {"developer": "system"}
"""Newer names of roles that templates know by the older one."""


def check_messages(messages: object) -> list[CheckedMessage]:
    """Fresh copies of the messages, in the form templates expect.

    ``developer`` reads ``system``; text parts are joined by newlines; a null content with
    tool calls is empty; null fields are absent.

    Raises:
        InvalidParams: naming the field, ``messages[0].content`` for example.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidParams("messages", f"must be a list of messages, got {_kind(messages)}")
    if not messages:
        raise InvalidParams("messages", "is empty: there is nothing to answer")
    checked = [_check(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if not any(message["content"].strip() or message.get("tool_calls") for message in checked):
        raise InvalidParams("messages", "say nothing: the content of each is empty")
    return checked


def merge_system(messages: Sequence[CheckedMessage]) -> list[CheckedMessage]:
    """The messages with each system text at the head of the next user turn.

    For templates without a system role. Without a user turn after it the text is one.
    """
    merged: list[CheckedMessage] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
            continue
        if waiting and message["role"] == "user":
            text = "\n\n".join([*waiting, message["content"]])
            merged.append({**message, "content": text})
            waiting = []
        else:
            merged.append(message)
    if waiting:
        merged.append({"role": "user", "content": "\n\n".join(waiting)})
    return merged


def parse_arguments(messages: Sequence[CheckedMessage]) -> list[CheckedMessage]:
    """The messages with tool-call arguments as objects, where their JSON is one.

    Clients send a JSON string, most templates print an object as JSON.
    """
    return [
        {**message, "tool_calls": [_parsed_call(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def with_parts(messages: Sequence[CheckedMessage]) -> list[CheckedMessage]:
    """The messages with each content as a list of one text part, as some templates read it."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if message["content"]
        else message
        for message in messages
    ]


def first_missing(text: str, messages: Sequence[CheckedMessage]) -> int | None:
    """The first message of which a prompt shows nothing; None: it shows all that it should.

    Templates trim, escape, indent and cut, so a few words of a content stand for it. What an
    assistant wrote they may leave out: its reasoning, or calls.
    """
    place = 0
    for index, message in enumerate(messages):
        words = _WORD.findall(message["content"])
        if message["role"] == "assistant" or not words:
            continue
        looked_for = (max(words, key=len), words[-1], words[0])
        places = [text.find(word, place) for word in looked_for]
        # Templates may print the system text behind what it came before.
        if max(places) < 0 and not any(word in text for word in looked_for):
            return index
        place = max(place, places[0])
    return None


def shows_system(text: str, messages: Sequence[CheckedMessage]) -> bool:
    """Whether a prompt has all of each system text."""
    return all(one["content"].strip() in text for one in messages if one["role"] == "system")


def _check(message: object, place: str) -> CheckedMessage:
    if not isinstance(message, Mapping):
        raise InvalidParams(place, f"must be an object, got {_kind(message)}")
    checked = {str(key): value for key, value in message.items() if value is not None}
    role = checked.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidParams(f"{place}.role", f"must be a role's name, got {_kind(role)}")
    checked["role"] = ROLES_RENAMED.get(role, role)
    calls = checked.pop("tool_calls", None)
    if calls:
        checked["tool_calls"] = _check_calls(calls, f"{place}.tool_calls")
    content = checked.get("content", "" if calls else None)
    checked["content"] = _join_content(content, f"{place}.content")
    return checked


def _join_content(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidParams(
            place, f"must be a string or a list of text parts, got {_kind(content)}"
        )
    texts: list[str] = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise InvalidParams(f"{place}[{index}]", f"must be an object, got {_kind(part)}")
        if part.get("type") != "text":
            raise InvalidParams(
                f"{place}[{index}].type",
                f"must be 'text', got {part.get('type')!r}: only text can be read here",
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidParams(f"{place}[{index}].text", f"must be a string, got {_kind(text)}")
        texts.append(text)
    return "\n".join(texts)


def _check_calls(calls: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidParams(place, f"must be a list, got {_kind(calls)}")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise InvalidParams(f"{place}[{index}].function", "must be an object")
        if not isinstance(function.get("name"), str):
            raise InvalidParams(f"{place}[{index}].function.name", "must be a string")
        if not isinstance(function.get("arguments", ""), str | Mapping):
            raise InvalidParams(
                f"{place}[{index}].function.arguments", "must be a JSON string or an object"
            )
    return [dict(call) for call in calls]


def _parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):  # it stays the string that it is
            parsed = None
        if isinstance(parsed, dict):
            function["arguments"] = parsed
    return {**call, "function": function}


def _kind(value: object) -> str:
    """A value's kind in JSON's words."""
    if value is None:
        return "null"
    names: list[tuple[type, str]] = [
        (bool, "a boolean"),
        (str, "a string" if value else "an empty string"),
        (int, "a number"),
        (float, "a number"),
        (Mapping, "an object"),
        (Sequence, "a list"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)
