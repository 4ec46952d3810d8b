"""JSON of responses and of request bodies, where clients need more than msgspec gives.

Responses: characters that some clients take for the end of a line are escaped, so that an event of
a stream is one line for everybody. Bodies: what msgspec refuses as a whole (a number beyond a
double, half of a surrogate pair) is read by Python's parser, so that the error can name its field.
"""

import codecs
import json
from typing import Any, NoReturn

import msgspec

from engine.errors import InvalidParams

_LINE_ENDS = {
    character.encode(): b"\\u%04x" % ord(character) for character in ("\x85", "\u2028", "\u2029")
}
"""Their UTF-8 occurs in JSON inside strings only."""


def encode(value: object) -> bytes:
    """JSON on one line, whatever a reader takes for the end of a line."""
    data = msgspec.json.encode(value)
    for raw, escaped in _LINE_ENDS.items():
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def decode(raw: bytes) -> Any:
    """The value of a body; numbers too large for a double are infinite.

    Raises:
        InvalidParams: it is no JSON in UTF-8, or nested too deeply.
    """
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise InvalidParams("body", "is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = str(error)
    try:
        return _well_formed(json.loads(raw.decode(), parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        raise InvalidParams("body", f"is not JSON in UTF-8: {problem}") from None


def _refuse_constant(name: str) -> NoReturn:
    """``NaN`` and ``Infinity`` are no JSON."""
    raise ValueError(name)


def _well_formed(value: Any) -> Any:
    """The value with U+FFFD for halves of surrogate pairs."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_well_formed(key): _well_formed(item) for key, item in value.items()}
        case list():
            return [_well_formed(item) for item in value]
        case _:
            return value
