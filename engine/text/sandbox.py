"""Runs a chat template, which came with a model from elsewhere, where it can do little harm.

Jinja's immutable sandbox keeps it from Python's insides. Bounded here are: the prompt's
length, the turns of ``range`` loops together, the size of what ``+``, ``*``, ``**``, ``%`` and
the methods and filters of strings make, and, looked at between two pieces of output, the time.
Not bounded are: memory that the ``~`` operator takes, and loops over values that are no range.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from time import monotonic
from types import TracebackType
from typing import Any

import jinja2
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import TemplateError

MAX_PROMPT_LETTERS = 64 * 2**20
"""Longest prompt a template may print; beyond any context of today."""

MAX_RANGE_TURNS = 2_000_000
"""Turns of all ``range`` loops of one rendering; a second or so."""

MAX_SECONDS = 30.0

_WIDENING_FILTERS = ("center", "format", "indent")

TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What running template code may raise, whatever the template does."""


class CompiledTemplate:
    """One template, ready to render."""

    __slots__ = ("_name", "_template")

    def __init__(self, source: str, *, name: str, now: Callable[[], datetime]) -> None:
        """Compile.

        Args:
            source: the Jinja text.
            name: what errors call it.
            now: the clock behind ``strftime_now``.

        Raises:
            TemplateError: the source is no Jinja template.
        """
        self._name = name
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"{name}, line {error.lineno}: {error.message}") from error
        except TEMPLATE_FAULTS as error:
            raise TemplateError(f"{name}: {_reason(error)}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Print the template.

        Raises:
            TemplateError: it failed, refused the messages or passed a bound.
        """
        budget = _RangeBudget(MAX_RANGE_TURNS)
        deadline = monotonic() + MAX_SECONDS
        pieces: list[str] = []
        letters = 0
        try:
            for piece in self._template.generate({**variables, "range": budget.range}):
                pieces.append(piece)
                letters += len(piece)
                if letters > MAX_PROMPT_LETTERS:
                    raise jinja2.TemplateError(f"the prompt passes {MAX_PROMPT_LETTERS} letters")
                if monotonic() > deadline:
                    raise jinja2.TemplateError(f"it ran for more than {MAX_SECONDS:.0f} s")
        except TEMPLATE_FAULTS as error:
            line = _line_of(error.__traceback__)
            place = f"{self._name}, line {line}" if line else self._name
            raise TemplateError(f"{place}: {_reason(error)}") from error
        return "".join(pieces)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what an operator may make."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > MAX_PROMPT_LETTERS:
            raise jinja2.TemplateError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        # jinja2 wraps str.format, for safety of another kind.
        text = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        if isinstance(text, str):
            _check_widths(called.__name__, text, args, kwargs)
        return super().call(context, called, *args, **kwargs)


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(slots=True)
class _RangeBudget:
    """``range`` that counts the turns of one rendering."""

    left: int
    spent: int = field(default=0)

    def range(self, *bounds: int) -> range:
        """A range, if the turns left allow it."""
        turns = range(*bounds)
        self.spent += len(turns) + 1
        if self.spent > self.left:
            raise jinja2.TemplateError(f"its loops turn more than {self.left} times")
        return turns


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag]
    )
    for name in _WIDENING_FILTERS:
        environment.filters[name] = _bounded(name, environment.filters[name])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _bounded(name: str, widen: Callable[..., Any]) -> Callable[..., Any]:
    """The filter ``widen``, refusing what would make too much."""

    @wraps(widen)
    def checked(text: Any, *args: Any, **kwargs: Any) -> Any:
        _check_widths(name, str(text), args, kwargs)
        return widen(text, *args, **kwargs)

    return checked


def _check_widths(name: str, text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a method or filter of ``text`` that would make a string out of all proportion."""
    width = max((one for one in (*args, *kwargs.values()) if isinstance(one, int)), default=0)
    match name, args:
        case "replace", (str(old), str(new), *_):
            size = text.count(old) * len(new)
        case "format" | "format_map", _:
            size = _widest_field(text)
        case "indent", _:
            size = width * (text.count("\n") + 1)
        case "expandtabs", _:
            size = width * text.count("\t")
        case "center" | "ljust" | "rjust" | "zfill", _:
            size = width
        case _:
            size = 0
    if size > MAX_PROMPT_LETTERS:
        raise jinja2.TemplateError(f"the result of {name!r} is too large")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  # templates pass it either way
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as the model saw it in training: unicode kept and no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _result_size(operator: str, left: Any, right: Any) -> float:
    """Letters, items or bits that an operation makes, roughly; 0 where that cannot be large."""
    match operator, left, right:
        case "+", str() | list() | tuple(), str() | list() | tuple():
            return len(left) + len(right)
        case "*", str() | list() | tuple(), int():
            return len(left) * right
        case "*", int(), str() | list() | tuple():
            return left * len(right)
        case "**", int(), int():
            return abs(left).bit_length() * abs(right)
        case "%", str(), _:
            return _widest_field(left)
        case _:
            return 0


def _widest_field(pattern: str) -> int:
    """The largest number in a format pattern, which may be a field's width."""
    digits = "".join(letter if letter in "0123456789" else " " for letter in pattern)
    return max((int(number[:12]) for number in digits.split()), default=0)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "its macros call each other without end"
    return str(error) or type(error).__name__


def _line_of(traceback: TracebackType | None) -> int | None:
    """The template's line that failed: jinja2 rewrites its frames to the source's lines."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
