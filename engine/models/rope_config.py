"""Brings transformers 5's ``rope_parameters`` into the keys that mlx-lm's families read.

transformers 5 writes one object where config.json had ``rope_theta``, ``rope_scaling`` and
``partial_rotary_factor`` side by side, or one object per layer type. Most families of mlx-lm
(0.32.2) ignore it and would rotate with their own default base: wrong answers without an error.
Source: transformers, ``modeling_rope_utils.RopeParameters``.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from engine.errors import UnsupportedModel

PARAMETERS = "rope_parameters"
TEXT = "text_config"

_THETA = ("rope_theta", "rotary_emb_base")
_PARTIAL = ("partial_rotary_factor", "rotary_pct")
_LOCAL_THETA = ("rope_local_base_freq", "swa_rope_theta", "rope_local_theta")
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"

_USUAL_THETA = 10_000.0
"""The base that families without a key for it have built in."""

_COMMON = dict.fromkeys(
    ("rope_theta", "partial_rotary_factor", "rope_scaling", "rope_local_base_freq"), False
)
"""Keys of a nested text model whose class goes by another name than its ``model_type``."""


def unfold_rope(
    config: Mapping[str, Any], args_of: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Return config.json with the keys that a family reads instead of ``rope_parameters``.

    A family that reads ``rope_parameters`` itself keeps it.

    Args:
        config: config.json.
        args_of: the ``ModelArgs`` class of a config or of its ``text_config``; None where the
            latter has none of its own.

    Raises:
        UnsupportedModel: A value that the family has no place for; names it.
    """
    unfolded = dict(config)
    text = config.get(TEXT)
    if isinstance(text, Mapping):
        unfolded[TEXT] = unfold_rope(text, args_of) if PARAMETERS in text else dict(text)
    parameters = config.get(PARAMETERS)
    if not isinstance(parameters, Mapping) or not parameters:
        return unfolded
    taken = _fields(args_of(config))
    if PARAMETERS in taken:
        return unfolded
    family = str(config.get("model_type"))
    if all(isinstance(value, Mapping) for value in parameters.values()):
        _unfold_by_layer(unfolded, parameters, taken, family)
    else:
        _put(unfolded, parameters, taken, family)
    return unfolded


def _unfold_by_layer(
    config: dict[str, Any],
    parameters: Mapping[str, Mapping[str, Any]],
    taken: Mapping[str, bool],
    family: str,
) -> None:
    """One object per layer type: full attention takes the main keys, sliding its own base."""
    unknown = sorted(parameters.keys() - {_GLOBAL, _LOCAL})
    if unknown:
        raise _no_place(family, f"the layer type {unknown[0]!r}")
    full = parameters.get(_GLOBAL) or parameters[_LOCAL]
    _put(config, full, taken, family)
    local = parameters.get(_LOCAL, full)
    theta = local.get("rope_theta")
    name = _first(_LOCAL_THETA, taken)
    if name is not None and theta is not None:
        config[name] = theta
    elif theta != full.get("rope_theta"):
        raise _no_place(family, f"a rope_theta of sliding layers ({theta})")
    scaled = _scaling(local)
    if scaled is not None and scaled != _scaling(full):
        raise _no_place(family, f"the rope scaling {scaled['rope_type']!r} of sliding layers")


def _put(
    config: dict[str, Any], parameters: Mapping[str, Any], taken: Mapping[str, bool], family: str
) -> None:
    """Write one object's values under the names that the family takes."""
    for key, names in (("rope_theta", _THETA), ("partial_rotary_factor", _PARTIAL)):
        value = parameters.get(key)
        if value is None:
            continue
        name = _first(names, taken)
        if name is not None:
            config[name] = value
        elif value != (_USUAL_THETA if names is _THETA else 1.0):
            raise _no_place(family, f"{key} ({value})")
    scaling = _scaling(parameters)
    if "rope_scaling" in taken:
        if scaling is not None or taken["rope_scaling"]:
            config["rope_scaling"] = scaling
    elif scaling is not None:
        raise _no_place(family, f"the rope scaling {scaling['rope_type']!r}")


def _scaling(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The ``rope_scaling`` of older configs, whose readers look for either name of the type."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default" and "mrope_section" not in parameters:
        return None
    rest = {k: v for k, v in parameters.items() if k not in ("rope_theta", "partial_rotary_factor")}
    return {**rest, "type": kind, "rope_type": kind}


def _fields(args: Any) -> Mapping[str, bool]:
    """Fields of a ``ModelArgs`` class, each with whether it must be given."""
    if not is_dataclass(args):
        return _COMMON
    return {
        one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(args)
    }


def _first(names: tuple[str, ...], taken: Mapping[str, bool]) -> str | None:
    return next((name for name in names if name in taken), None)


def _no_place(family: str, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{PARAMETERS} of config.json gives {what}, which mlx-lm's {family!r} cannot take"
    )
