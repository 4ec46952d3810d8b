"""The options that choose the next token, built from the engine's declaration of each field."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

from engine.errors import InvalidParams
from engine.params import SAMPLING_FIELDS, SAMPLING_GROUPS, SamplingField, SamplingParams
from mlxcel_cli.option_groups import option_group

NO_BREAKERS = "none"
Bias = tuple[int | str, float]
"""A token id, or a string whose tokens are meant, and what to add to their logits."""

_ID_DIGITS = 20
_APART = frozenset({"seed", "logit_bias", "dry_sequence_breakers"})


def _option(one: SamplingField) -> Any:
    return typer.Option(
        one.option, *one.spellings, metavar=one.metavar, rich_help_panel=one.group, help=one.help
    )


def _hint(one: SamplingField) -> Any:
    kind: Any = list[str] if one.type is list else one.type
    return Annotated[kind | None, _option(one)]


_HINTS = {
    one.name: _hint(one)
    for one in sorted(SAMPLING_FIELDS, key=lambda one: SAMPLING_GROUPS.index(one.group))
}

Seed = Annotated[int | None, *_HINTS["seed"].__metadata__]
"""The option that ``parity`` has too."""


class SamplingOptions(option_group("SamplingOptions", _HINTS)):  # type: ignore[misc]
    """How the next token is chosen; field names are those of ``SamplingParams``."""


def sampling_params(options: SamplingOptions, defaults: SamplingParams) -> SamplingParams:
    """The sampling parameters that options ask for; ``defaults`` fill what they leave open.

    Biases of strings need a tokenizer and stay out: `parse_biases` reads them.

    Raises:
        InvalidParams: a value is out of its range; names the option.
    """
    values: dict[str, Any] = {
        one.name: getattr(defaults, one.name) for one in fields(SamplingParams)
    }
    for one in fields(options):
        value = getattr(options, one.name)
        if value is not None and one.name not in _APART:
            values[one.name] = value
    if options.seed is not None:
        values["seed"] = None if options.seed == -1 else options.seed
    breakers = options.dry_sequence_breakers
    if breakers is not None:
        values["dry_sequence_breakers"] = () if breakers == [NO_BREAKERS] else tuple(breakers)
    return SamplingParams(**values)


def parse_biases(texts: list[str] | None) -> tuple[Bias, ...]:
    """Options such as ``15=-2``, ``"yes"=5`` and ``yes=5``.

    Raises:
        InvalidParams: not of that form, or the value is not a number.
    """
    return tuple(_parse_bias(text) for text in texts or ())


def token_biases(
    biases: Iterable[Bias], encode: Callable[[str], Sequence[int]]
) -> dict[int, float]:
    """Token id to bias; what is said twice of a token is added."""
    summed: dict[int, float] = {}
    for token, value in biases:
        for one in (token,) if isinstance(token, int) else encode(token):
            summed[one] = summed.get(one, 0.0) + value
    return summed


def _parse_bias(text: str) -> Bias:
    token, equals, value = text.rpartition("=")
    try:
        bias = float(value)
    except ValueError:
        bias = math.nan
    if not equals or not token or math.isnan(bias):
        raise InvalidParams(
            "--logit-bias", f'must be ID=VALUE or "text"=VALUE with a number, not {text!r}'
        )
    if len(token) > 2 and token[0] == token[-1] == '"':
        return token[1:-1], bias
    # An id of more digits than any vocabulary has is refused by the engine, once it is an int.
    is_id = token.removeprefix("-").isdecimal()
    return (int(token[:_ID_DIGITS]) if is_id else token), bias
