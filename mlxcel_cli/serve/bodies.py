"""Reads request bodies: length and encoding are checked, then every field, by name.

A field that is known and cannot be honoured is refused unless its value asks for nothing; an
unknown field is refused too. Dropping either would answer another question than was asked.
"""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import inspect

from engine.errors import InvalidParams
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.json_text import decode

BODY_IDLE_S = 30.0
"""Seconds that a client may pause while it sends a body."""
ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
"""What a body may be packed as."""

INERT_PREFIX = "speculative."
"""Clients cannot choose how drafts are made; llama.cpp's keys for it are taken and not used."""

SPELLINGS: web.RequestKey[Mapping[str, str]] = web.RequestKey("spellings", Mapping)
"""Fields of a body whose alias the client wrote, with that alias: errors name it."""

S = TypeVar("S", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?(?:\[\.\.\.\]\.?)?([^`]*)`$")
_NAMED = re.compile(r"(?:unknown|required) field `([^`]+)`")


@dataclass(frozen=True, slots=True)
class FieldRules:
    """What an endpoint tolerates besides the fields it honours."""

    aliases: Mapping[str, str]
    """Other spelling to field."""
    inert: frozenset[str]
    """Taken, without effect."""
    unsupported: Mapping[str, tuple[object, ...]]
    """Known field to the values that ask for nothing."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Unsupported field to what to do instead."""


async def read_json(request: web.Request, shape: type[S], rules: FieldRules) -> tuple[S, int]:
    """The body as a typed value, and how many bytes it had.

    Raises:
        ApiError, InvalidParams: as `read_body` and `parse_body`.
    """
    raw = await read_body(request)
    body = decode(raw)
    if isinstance(body, dict):
        request[SPELLINGS] = {rules.aliases[name]: name for name in body if name in rules.aliases}
    return typed_body(body, shape, rules), len(raw)


async def read_body(request: web.Request) -> bytes:
    """The body's bytes.

    Raises:
        ApiError: it is too long, or not JSON by its header.
    """
    kind = request.content_type
    # A page can send a body without asking first, unless it says that it is JSON.
    is_stated = "Content-Type" in request.headers or "Origin" in request.headers
    if is_stated and not kind.endswith(("/json", "+json")):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body must be JSON: send Content-Type: application/json, not {kind}.",
            code="unsupported_media_type",
        )
    packed = request.headers.get("Content-Encoding", "").strip().lower()
    if packed not in ENCODINGS:
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's Content-Encoding must be gzip, deflate or identity, not {packed}.",
            code="unsupported_encoding",
        )
    # A client that says how much it has is not made to send it first.
    if (request.content_length or 0) > request.client_max_size:
        raise _too_large()
    try:
        return await _read(request)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"Nothing of the body came for {BODY_IDLE_S:g} s.",
            code="request_timeout",
        ) from None
    except web.RequestPayloadError as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "The body cannot be read: its chunks or its Content-Encoding are broken.",
            code="invalid_body",
        ) from error


def parse_body(raw: bytes, shape: type[S], rules: FieldRules) -> S:
    """The body's bytes as a typed value.

    Raises:
        InvalidParams: as `decode` and `typed_body`.
    """
    return typed_body(decode(raw), shape, rules)


def typed_body(body: object, shape: type[S], rules: FieldRules) -> S:
    """A body's JSON as a typed value.

    Raises:
        InvalidParams: it is no object, or a field is unknown, unsupported, missing or of the wrong
            type; names the field as the client spelt it.
    """
    if not isinstance(body, dict):
        raise InvalidParams("body", "must be a JSON object")
    screened = screen(body, frozenset(shape.__struct_fields__), rules)
    whole = {
        name: _whole(value) if name in _integer_fields(shape) else value
        for name, value in screened.items()
    }
    try:
        return msgspec.convert(whole, shape)
    except msgspec.ValidationError as error:
        raise _as_written(_as_invalid(str(error)), body, rules) from None
    except OverflowError:  # of a whole number that no double holds
        huge = [name for name, value in body.items() if _is_huge(value)]
        raise InvalidParams((huge or ["body"])[0], "holds a number that is too large") from None


def screen(body: Mapping[str, Any], known: frozenset[str], rules: FieldRules) -> dict[str, Any]:
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
                other = next(key for key in body if rules.aliases.get(key, key) == name)
                raise InvalidParams(written, f"disagrees with {other}, which means the same")
        elif name in rules.unsupported:
            if not _asks_nothing(value, rules.unsupported[name]):
                raise InvalidParams(written, rules.advice.get(name, "is not supported yet"))
        else:
            _refuse_unknown(written)
    return screened


async def _read(request: web.Request) -> bytes:
    """All of the body, as long as it keeps coming and stays below the limit."""
    body = bytearray()
    while True:
        async with asyncio.timeout(BODY_IDLE_S):
            chunk = await request.content.readany()
        if not chunk:
            return bytes(body)
        body += chunk
        if len(body) > request.client_max_size:
            raise _too_large()


def _too_large() -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Request body too large.", code="body_too_large"
    )


@cache
def _integer_fields(shape: type[msgspec.Struct]) -> frozenset[str]:
    """Fields that take whole numbers, alone or in a list, and no fractions."""
    info = inspect.type_info(shape)
    assert isinstance(info, inspect.StructType)
    return frozenset(one.encode_name for one in info.fields if _takes_integers(one.type))


def _takes_integers(kind: inspect.Type) -> bool:
    kinds = {type(one) for one in _kinds(kind)}
    return inspect.IntType in kinds and inspect.FloatType not in kinds


def _kinds(kind: inspect.Type) -> Iterator[inspect.Type]:
    """A type's alternatives, those of a list's items too."""
    if isinstance(kind, inspect.Metadata):
        yield from _kinds(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _kinds(one)
    elif isinstance(kind, inspect.ListType):
        yield from _kinds(kind.item_type)
    else:
        yield kind


def _whole(value: Any) -> Any:
    """16.0 as 16, also in a list; any other value as it is."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_huge(value: Any) -> bool:
    """Whether a value holds a whole number beyond a double."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(_is_huge, value))
    return isinstance(value, int) and abs(value) > sys.float_info.max


def _as_written(error: InvalidParams, body: Mapping[str, Any], rules: FieldRules) -> InvalidParams:
    """The error with the field's name as the client spelt it."""
    name, *rest = error.field.split(".")
    written = next((key for key in body if rules.aliases.get(key, key) == name), name)
    return InvalidParams(".".join([written, *rest]), error.problem)


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
