"""Estimates the size of what an operation of a chat template makes, before it runs.

From the sizes of its operands and the numbers in them, on the high side: what is refused is out of
all proportion to any prompt.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.runtime import Undefined

MAX_VALUE_SIZE = 64 * 2**20
"""Characters of a text, items of a list, bits of a number that a template may make."""

MAX_NUMBER = 2_000_000
"""Largest width, indent or count given to a filter or to a method of a text or number, and longest
range: each may stand for as many turns of a loop that executes no line of the template."""

_NUMBER = re.compile(r"\d+")

COUNTS_NOTHING = frozenset(
    {"default", "d", "int", "float", "round", "sum", "map", "select", "reject", "selectattr",
     "rejectattr"}
)  # fmt: skip
"""Filters whose numbers are values."""

_PRINTS = frozenset({"string", "pprint", "escape", "e", "forceescape", "safe", "upper", "lower"})
"""Filters that write out lists and objects."""


def operation_size(operator: str, left: Any, right: Any) -> int:
    """Characters, items or bits that an operation makes, at most; 0 where that cannot be large."""
    match operator, left, right:
        case "+", str() | list() | tuple(), str() | list() | tuple():
            size = len(left) + len(right)
        case "*", str() | list() | tuple(), int():
            size = len(left) * right
        case "*", int(), str() | list() | tuple():
            size = left * len(right)
        case "*", int(), int():
            size = left.bit_length() + right.bit_length()
        case "**", int(), int():
            size = abs(left).bit_length() * abs(right)
        case "%", str(), _:
            size = _format_size(left, (right,))
        case _:
            size = 0
    return size


def call_size(name: str, values: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Characters that a method of a text, or a filter, makes at most.

    Args:
        name: of the method or filter.
        values: what it works on, then its arguments.
        keywords: arguments by name.
    """
    if not values:
        return 0
    subject, arguments = values[0], (*values[1:], *keywords.values())
    text = subject if isinstance(subject, str) else ""
    match name, arguments:
        case "replace", (str(old), str(new), *_):
            size = len(text) + text.count(old) * len(new)
        case "join", _:
            size = _join_size(subject, arguments)
        case "format" | "format_map", _:
            size = _format_size(text, arguments)
        case "tojson", _:
            size = value_size(subject) * max(1, largest_number(arguments))
        case _ if name in _PRINTS and not text:
            size = value_size(subject)
        case _ if name in COUNTS_NOTHING:
            size = 0
        case _:
            # A width, an indent, a count: for each line, or in place of each tab.
            size = largest_number(arguments) * (text.count("\n") + text.count("\t") + 1)
    return size


def _format_size(pattern: str, arguments: Sequence[Any]) -> int:
    """Each number in a pattern is a width, and where one may be given apart each argument too."""
    widths = sum(min(int(number[:12]), MAX_VALUE_SIZE) for number in _NUMBER.findall(pattern))
    if "*" in pattern or re.search(r"{[^{}]*{", pattern):
        widths += largest_number(tuple(arguments)) * (pattern.count("*") + pattern.count("{"))
    return len(pattern) + widths + value_size(arguments)


def _join_size(subject: Any, arguments: Sequence[Any]) -> int:
    """Of ``separator.join(items)``, and of the filter, which has them the other way round."""
    items, separators = (arguments[0] if arguments else (), [subject])
    if not isinstance(subject, str) or not arguments:
        items, separators = subject, [one for one in arguments if isinstance(one, str)]
    elif isinstance(items, str):  # ``"abc" | join("-")`` joins characters
        return (len(subject) + len(items)) * (max(len(subject), len(items)) + 1)
    separator = max((len(one) for one in separators), default=0)
    if not isinstance(items, str | list | tuple | dict):
        return 0  # a generator: what it makes is bounded by the lines it takes
    return value_size(items) + separator * len(items)


def value_size(value: Any) -> int:
    """Characters of the texts in a value, and one for each thing in it."""
    size, pending, seen = 0, [value], 0
    while pending:
        one = pending.pop()
        seen += 1
        if seen > MAX_NUMBER or size > MAX_VALUE_SIZE:
            return MAX_VALUE_SIZE + 1
        match one:
            case str():
                size += len(one) + 1
            case Mapping():
                pending += [*one.keys(), *one.values()]
            case list() | tuple():
                pending += one
            case Undefined() | None:
                size += 1
            case _:
                size += 32
    return size


def largest_number(value: Any) -> int:
    """The largest whole number among arguments, not in the lists and objects they hold."""
    match value:
        case bool():
            return 0
        case int():
            return abs(value)
        case tuple():
            return max(map(largest_number, value), default=0)
        case dict():
            return max(map(largest_number, value.values()), default=0)
        case _:
            return 0
