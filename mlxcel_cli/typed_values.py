"""Turns what is typed into values; what is absent or plain text needs none of Typer's checks.

Typer builds a pydantic adapter for each option at every start, also for those that nobody gave:
a tenth of a second before a command begins. Here pydantic is loaded only where a value wants it: a
path, or what may be an error.
"""

import re
from collections.abc import Callable
from typing import Any

_PLAIN_NUMBERS = ((int, re.compile(r"-?[0-9]{1,15}")), (float, re.compile(r"-?[0-9]+(\.[0-9]+)?")))
"""Numbers that every reader takes for the same."""


def check_given_only(param: Any) -> None:
    """Let a parameter ask Typer only about a value that was given, and is not plain."""
    build = getattr(param, "get_runtime_param", None)
    # Earlier versions of Typer have no such method; there nothing is changed.
    if build is not None and not isinstance(build, _Check):
        param.get_runtime_param = _Check(param, build)


class _Check:
    """Stands in for Typer's check of one parameter, and makes that one when it is needed."""

    def __init__(self, param: Any, build: Callable[[], Any]) -> None:
        self._is_list = param.multiple or param.nargs == -1
        described = param.type_descriptor
        rules = described.parameter_info
        is_bare = rules.parser is None and rules.min is None and rules.max is None
        self._kind = described.annotation if is_bare else None
        self._build = build

    def __call__(self) -> "_Check":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command takes it.

        Raises:
            BadParameter: Typer's, for a value of another type.
        """
        if value is None:
            return () if self._is_list else None
        if self._kind in (str, bool) and type(value) is self._kind:
            return value
        if self._kind == list[str] and all(type(one) is str for one in value):
            return list(value)
        for kind, plain in _PLAIN_NUMBERS:
            if self._kind is kind and type(value) is str and plain.fullmatch(value):
                return kind(value)
        return self._build().coerce(value, param=param, ctx=ctx)
