"""Runs a chat template, which came with a model from elsewhere, where it can do little harm.

Jinja's immutable sandbox keeps it from Python's insides. The rest is bounded by kind, so that no
single operation has to be known as dangerous:

    T1  The lines that a rendering executes, and its time, looked at on each line.
    T2  The prompt's length.
    T3  Every text and list that an operator, a call or a filter makes: its size is estimated before
        it runs (`engine.text.value_sizes`); a number that is large in itself is refused.
    T4  Callables are those of the messages' own values, of templates and of `GLOBALS`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import EvalContext, Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import TemplateError
from engine.text.value_sizes import (
    COUNTS_NOTHING,
    MAX_NUMBER,
    MAX_VALUE_SIZE,
    call_size,
    largest_number,
    operation_size,
    value_size,
)

MAX_PROMPT_CHARACTERS = 64 * 2**20
"""Longest prompt a template may print; beyond any context of today."""


MAX_LINES = 5_000_000
"""Lines that one rendering executes. A conversation of 1,000 turns takes some 50,000."""

MAX_SECONDS = 30.0


LINES_PER_LOOK = 256
"""The clock is looked at on each of so many lines."""

GLOBALS = ("range", "dict", "namespace", "cycler", "joiner")
"""Those of jinja2's that templates keep; ``lipsum`` makes texts of any length."""

_CONTEXTS = (Context, EvalContext, jinja2.Environment)
"""What some filters are given first."""

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
        parts: list[str] = []
        characters = 0
        try:
            with _counted_lines():
                for part in self._template.generate(variables):
                    parts.append(part)
                    characters += len(part)
                    if characters > MAX_PROMPT_CHARACTERS:
                        raise jinja2.TemplateError(
                            f"the prompt passes {MAX_PROMPT_CHARACTERS} characters"
                        )
        except TEMPLATE_FAULTS as error:
            line = _line_of(error.__traceback__)
            place = f"{self._name}, line {line}" if line else self._name
            raise TemplateError(f"{place}: {_reason(error)}") from error
        return "".join(parts)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what an operation may make."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _refuse_large(operator, operation_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        # jinja2 wraps str.format, for safety of another kind.
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        name = getattr(called, "__name__", "a call")
        if isinstance(owner, str | int | float):
            _check_numbers(name, (args, kwargs))
            _refuse_large(name, call_size(name, (owner, *args), kwargs))
        return super().call(context, called, *args, **kwargs)

    def join(self, *values: Any) -> str:
        """What the operator ``~`` makes."""
        _refuse_large("~", value_size(values))
        return "".join(map(str, values))


class _Generator(CodeGenerator):
    """Compiles ``~`` to a call of the sandbox: jinja2 lets nobody intercept it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # jinja2's name
        self.write("environment.join(")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write(")")


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@contextmanager
def _counted_lines() -> Iterator[None]:
    """Count the lines of template code that this thread executes; raise past the bounds (T1)."""
    deadline = monotonic() + MAX_SECONDS
    lines = 0

    def on_line(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines > MAX_LINES:
                raise jinja2.TemplateError(f"it executes more than {MAX_LINES} lines")
            if lines % LINES_PER_LOOK == 1 and monotonic() > deadline:
                raise jinja2.TemplateError(f"it ran for more than {MAX_SECONDS:.0f} s")
        return on_line

    def on_call(frame: FrameType, _event: str, _argument: object) -> Any:
        return on_line if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[LoopControlExtension, _GenerationTag],
        finalize=_printed,
    )
    environment.code_generator_class = _Generator
    for name in environment.globals.keys() - set(GLOBALS):
        del environment.globals[name]
    environment.filters["tojson"] = _to_json
    for name, filter_ in environment.filters.items():
        environment.filters[name] = _bounded(name, filter_)
    environment.globals["range"] = _range
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _bounded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, refusing what would make too much."""

    @wraps(filter_)
    def checked(*args: Any, **kwargs: Any) -> Any:
        # Some filters are given the context or the environment first.
        values = [one for one in args if not isinstance(one, _CONTEXTS)]
        if name not in COUNTS_NOTHING:
            _check_numbers(name, (tuple(values[1:]), kwargs))
        _refuse_large(name, call_size(name, values, kwargs))
        return filter_(*args, **kwargs)

    return checked


def _check_numbers(what: str, arguments: Any) -> None:
    if largest_number(arguments) > MAX_NUMBER:
        raise jinja2.TemplateError(f"the result of {what!r} is too large")


def _printed(value: Any) -> Any:
    """What ``{{ }}`` prints, refused where it is a list or object too large to be written out."""
    if isinstance(value, list | tuple | Mapping):
        _refuse_large("{{ }}", value_size(value))
    return value


def _refuse_large(what: str, size: int) -> None:
    if size > MAX_VALUE_SIZE:
        raise jinja2.TemplateError(f"the result of {what!r} is too large")


def _range(*bounds: int) -> range:
    """A range of bounded length."""
    turns = range(*bounds)
    if len(turns) > MAX_NUMBER:
        raise jinja2.TemplateError("the result of 'range' is too large")
    return turns


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
