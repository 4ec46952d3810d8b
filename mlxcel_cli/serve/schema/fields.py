"""Screens a request body before it is typed: aliases, nulls, inert fields, and refusals by name.

A field we know and cannot honour is refused unless its value asks for nothing; an unknown field
is refused too. Dropping either would answer another question than the one that was asked.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from engine.errors import InvalidParams
from mlxcel_cli.serve.schema.requests import ALIASES

INERT = frozenset({
    "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
    "prompt_cache_retention",
})  # fmt: skip
"""Fields that OpenAI's clients send and that change no answer here."""

INERT_PREFIX = "speculative."
"""Clients cannot choose how drafts are made; llama.cpp's keys for it are taken and not used."""

UNSUPPORTED: Mapping[str, tuple[object, ...]] = MappingProxyType({
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "grammar": ("",),
    "json_schema": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "samplers": (),
    "prompt_logprobs": (0,),
    "use_beam_search": (False,),
    "id_slot": (-1,),
})  # fmt: skip
"""Known fields that are not supported, with the values that ask for nothing; null always does."""


@dataclass(frozen=True, slots=True)
class FieldRules:
    """What an endpoint tolerates beside the fields it honours."""

    aliases: Mapping[str, str]
    """Other spelling to field."""
    inert: frozenset[str]
    """Taken, without effect."""
    unsupported: Mapping[str, tuple[object, ...]]
    """Known field to the values that ask for nothing."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Unsupported field to what to do instead."""


OPENAI = FieldRules(ALIASES, INERT, UNSUPPORTED)
"""The rules of OpenAI's endpoints."""

S = TypeVar("S", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?(?:\[\.\.\.\]\.?)?([^`]*)`$")
_NAMED = re.compile(r"(?:unknown|required) field `([^`]+)`")


def parse_body(raw: bytes, shape: type[S], rules: FieldRules = OPENAI) -> S:
    """The body as a typed value.

    Raises:
        InvalidParams: it is no JSON object in UTF-8, or a field is unknown, unsupported, missing
            or of the wrong type; names the field.
    """
    try:
        body = msgspec.json.decode(raw)
    except RecursionError:
        raise InvalidParams("body", "is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidParams("body", f"is not JSON in UTF-8: {error}") from None
    if not isinstance(body, dict):
        raise InvalidParams("body", "must be a JSON object")
    screened = screen(body, frozenset(shape.__struct_fields__), rules)
    try:
        return msgspec.convert(screened, shape)
    except msgspec.ValidationError as error:
        raise _as_invalid(str(error)) from None


def screen(
    body: Mapping[str, Any], known: frozenset[str], rules: FieldRules = OPENAI
) -> dict[str, Any]:
    """The fields of ``known``, by their canonical names; null is as good as absent.

    Raises:
        InvalidParams: an unknown or unsupported field, or two spellings that disagree.
    """
    screened: dict[str, Any] = {}
    for written, value in body.items():
        name = rules.aliases.get(written, written)
        if value is None or written in rules.inert or written.startswith(INERT_PREFIX):
            if name not in {*rules.inert, *rules.unsupported, *known}:
                _refuse_unknown(written)
            continue
        if name in known:
            if screened.setdefault(name, value) != value:
                raise InvalidParams(written, f"disagrees with {name}, which means the same")
        elif name in rules.unsupported:
            if not _asks_nothing(value, rules.unsupported[name]):
                raise InvalidParams(written, rules.advice.get(name, "is not supported yet"))
        else:
            _refuse_unknown(written)
    return screened


def _asks_nothing(value: object, inert: tuple[object, ...]) -> bool:
    # 1 == True in Python, and not in JSON.
    return any(value == one and type(value) is type(one) for one in inert)


def _refuse_unknown(name: str) -> None:
    if not name.startswith(INERT_PREFIX):
        raise InvalidParams(name, "is not a field of this endpoint")


def _as_invalid(text: str) -> InvalidParams:
    """Msgspec's message, with the field where clients look for it."""
    path = _PATH.search(text)
    problem = text[: path.start()] if path else text
    named = _NAMED.search(problem)
    place = path.group(1) if path else ""
    if named:
        place = f"{place}.{named.group(1)}" if place else named.group(1)
        problem = "is required" if "required" in problem else "is not a field here"
    return InvalidParams(place or "body", problem[:1].lower() + problem[1:])
