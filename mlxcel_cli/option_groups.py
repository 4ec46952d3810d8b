"""Lets a command take its options in groups, which Typer itself cannot."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

C = TypeVar("C", bound=Callable[..., object])


def option_group(name: str, options: Mapping[str, Any]) -> Any:
    """A frozen dataclass that holds one option a field, None where it is not given."""
    declared = [(key, hint, field(default=None)) for key, hint in options.items()]
    return make_dataclass(name, declared, frozen=True, slots=True, kw_only=True)


def takes_groups(command: C) -> C:
    """Let Typer see one parameter for each option of the one dataclass that ``command`` takes.

    Its fields are annotated as Typer's parameters are, or are groups of options: dataclasses of
    the same kind.
    """
    (group,) = (hint for name, hint in get_type_hints(command).items() if name != "return")
    parameters = list(_parameters(group))

    @wraps(command)
    def wrapper(**values: Any) -> object:
        return command(_filled(group, values))

    # Not wraps' own link: inspect would follow it to the original signature.
    del wrapper.__wrapped__
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper  # type: ignore[return-value]


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    for name, hint in _hints(group).items():
        if is_dataclass(hint):
            yield from _parameters(hint)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(name, kind, default=None, annotation=hint)


def _filled(group: Any, values: Mapping[str, Any]) -> Any:
    return group(
        **{
            name: _filled(hint, values) if is_dataclass(hint) else values[name]
            for name, hint in _hints(group).items()
        }
    )


def _hints(group: Any) -> dict[str, Any]:
    hints = get_type_hints(group, include_extras=True)
    return {one.name: hints[one.name] for one in fields(group)}
