"""Turns frozen values into what JSON holds and back: a value's type is the schema of its JSON.

Knows dataclasses, enums, tuples, frozen sets, mappings, optional values and plain ones. What does
not have the shape of its type is refused, so a foreign document cannot become a value.
"""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

PLAIN_ERRORS = (TypeError, ValueError, LookupError, AttributeError)
"""What `from_plain` raises for a document that does not fit; EngineErrors of checks pass too."""


def to_plain(value: Any) -> Any:
    """``value`` as JSON can hold it; sets are sorted, so equal values give equal documents."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, frozenset):
        return [to_plain(item) for item in sorted(value)]
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: Any, document: Any) -> Any:
    """The value of type ``kind`` that ``document`` describes.

    Raises:
        TypeError, ValueError, LookupError, AttributeError: it describes none.
    """
    if is_dataclass(kind):
        return _record(kind, document)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if document is None else from_plain(_only(inner), document)
    if origin in (tuple, frozenset):
        return origin(from_plain(inner[0], item) for item in _list(document))
    if origin is Mapping:
        pairs = [_list(pair) for pair in _list(document)]
        return {from_plain(inner[0], key): from_plain(inner[1], item) for key, item in pairs}
    return _plain(kind, document)


def _only(inner: tuple[Any, ...]) -> Any:
    """The type of an optional value."""
    (only,) = (one for one in inner if one is not types.NoneType)
    return only


def _record(kind: Any, document: Any) -> Any:
    hints = get_type_hints(kind)
    names = {one.name for one in fields(kind)}
    if not isinstance(document, dict) or set(document) != names:
        raise ValueError(f"{kind.__name__} has the fields {', '.join(sorted(names))}")
    return kind(**{name: from_plain(hints[name], document[name]) for name in names})


def _plain(kind: Any, document: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(document)
    if kind is float and isinstance(document, int) and not isinstance(document, bool):
        return float(document)
    if type(document) is not kind:
        raise TypeError(f"{document!r} is no {kind.__name__}")
    return document


def _list(document: Any) -> list[Any]:
    if not isinstance(document, list):
        raise TypeError(f"{document!r} is no list")
    return document
