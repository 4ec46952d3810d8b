"""Lets a command take its options in groups, which Typer itself cannot."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

C = TypeVar("C", bound=Callable[..., object])


def option_group(name: str, options: Mapping[str, Any]) -> Any:
    """A frozen dataclass that holds one option a field, None where it is not given."""
    declared = [(key, hint, field(default=None)) for key, hint in options.items()]
    return make_dataclass(name, declared, frozen=True, slots=True, kw_only=True)


def takes_groups(command: C) -> C:
    """Let Typer see one parameter for each field of the groups that ``command`` takes.

    Parameters of ``command`` that are annotated with a dataclass are groups; their fields are
    annotated as Typer's parameters are. Other parameters stay as they are.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _group_parameters(groups[name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))

    @wraps(command)
    def wrapper(**values: Any) -> object:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    # Not wraps' own link: inspect would follow it to the original signature.
    del wrapper.__wrapped__
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper  # type: ignore[return-value]


def _group_parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
