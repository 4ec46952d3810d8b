"""Where every setting comes from: flag, else environment, else options file, else the default.

Options of a command and the machine's settings share one namespace: ``temperature`` is
``--temperature`` on the command line, ``MLXCEL_TEMPERATURE`` in the environment and
``temperature`` in the options file, at its top level or in a command's table
(``[generate]``), which wins. For ``chat`` and ``serve`` the model's own generation_config
comes before the default. This is the only place that reads the environment.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from engine.errors import InvalidParams
from engine.runtime.folders import cache_home, hub_cache, hub_is_offline
from mlxcel_cli.chat_options import ChatOptions
from mlxcel_cli.lookup_options import LookupOptions
from mlxcel_cli.options import LengthOptions, ModelOptions, OutputOptions, PromptOptions
from mlxcel_cli.paths import data_home, options_file
from mlxcel_cli.sampling_options import SamplingOptions
from mlxcel_cli.serve_options import ServeOptions

PREFIX = "MLXCEL_"
COMMAND_TABLES = frozenset({"generate", "chat", "serve"})
"""Tables of the options file that hold settings of one command."""

_GROUPS = (
    PromptOptions, ModelOptions, LengthOptions, SamplingOptions, LookupOptions, ChatOptions,
    ServeOptions, OutputOptions,
)  # fmt: skip
_ONLY_FLAGS = frozenset({
    "prompt", "file", "messages", "prefill", "lookup_file", "config", "resume", "continue_newest",
})  # fmt: skip
"""What a setting would make a trap: it would change every call unseen."""

_OTHER_VARIABLES = frozenset({"MLXCEL_CONFIG"})
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")

G = TypeVar("G")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Settings that are no options: they belong to the machine, not to one call."""

    home: str | None = None
    """Cache folder of models and compiled parts."""
    blas: str | None = None
    """``off``, or the path of a BLAS library, for MLX's CPU backend on Linux."""
    deterministic: bool = False
    """Choose kernels whose results do not depend on the batch's width, where there are any."""
    cache_clear_interval: int | None = None
    """Tokens between two clearings of MLX's buffer cache; 0 is never."""
    force_sync: bool = False
    """Read each token before the next forward is dispatched."""
    prefill_chunk: int | None = None
    """Most prompt tokens of one forward; 0 is the whole prompt."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment and the options file say, and where mlxcel's files are."""

    values: Mapping[str, object]
    """By key, the environment before the file; without the command line's."""
    machine: MachineSettings
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Short model names of the options file's ``[aliases]`` table."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of the chat's actions that the options file's ``[keys]`` table changes."""
    cache_home: Path = Path()
    data_home: Path = Path()
    hub_cache: Path = Path()
    hub_offline: bool = False
    """Whether HF_HUB_OFFLINE forbids asking a hub."""
    warnings: tuple[str, ...] = ()

    def fill(self, group: G) -> G:
        """``group``, options or a dataclass of such groups, with what it leaves open from here."""
        known: Any = group
        found: dict[str, object] = {}
        for one in fields(known):
            value = getattr(known, one.name)
            if is_dataclass(value):
                found[one.name] = self.fill(value)
            elif value is None and one.name in self.values:
                found[one.name] = self.values[one.name]
        filled: G = replace(known, **found)
        return filled


def load_settings(
    environ: Mapping[str, str], *, command: str, config: Path | None = None
) -> Settings:
    """Read the environment and the options file.

    Args:
        environ: the process's environment.
        command: whose table of the options file counts.
        config: the options file named on the command line, which must then exist.

    Raises:
        InvalidParams: an unknown key or a bad value; names the place, the key and what it allows.
    """
    path = config or options_file(environ)
    must_exist = config is not None or "MLXCEL_CONFIG" in environ
    in_file, aliases, keys = _read_file(path, command, must_exist=must_exist)
    values = {**in_file, **_read_environ(environ)}
    machine: dict[str, Any] = {
        one.name: values.pop(one.name) for one in fields(MachineSettings) if one.name in values
    }
    for name in ("cache_clear_interval", "prefill_chunk"):
        if machine.get(name, 0) < 0:
            raise InvalidParams(name, f"must be 0 or more, got {machine[name]}")
    home = {"MLXCEL_HOME": str(machine["home"])} if "home" in machine else {}
    return Settings(
        values=values,
        machine=MachineSettings(**machine),
        aliases=aliases,
        keys=keys,
        cache_home=cache_home(home),
        data_home=data_home(home),
        hub_cache=hub_cache(environ),
        hub_offline=hub_is_offline(environ),
        warnings=tuple(_misspelt(environ)),
    )


def debug_asked(environ: Mapping[str, str]) -> bool:
    """Whether ``MLXCEL_DEBUG`` asks for tracebacks; never raises."""
    return environ.get("MLXCEL_DEBUG", "").lower() in _TRUE


def silence_advice(environ: MutableMapping[str, str]) -> None:
    """Keep transformers, which mlx-lm's own loops bring, from advising to install PyTorch."""
    environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def setting_types() -> dict[str, type]:
    """Every setting's key and type: bool, int, float, str, Path or list (of strings)."""
    types: dict[str, type] = {}
    for group in (*_GROUPS, MachineSettings):
        for key, hint in get_type_hints(group).items():
            if key not in _ONLY_FLAGS:
                types[key] = _plain_type(hint)
    return types


def value_from_text(place: str, kind: type, text: str) -> object:
    """A setting's value from the environment, or as typed in a chat.

    Raises:
        InvalidParams: ``text`` is no value of that type; names the place.
    """
    try:
        if kind is bool:
            return _to_bool(text)
        if kind is list:
            return _to_strings(text)
        return kind(text)
    except (ValueError, RecursionError):
        raise InvalidParams(place, f"must be {_allowed(kind)}, not {text!r}") from None


def _plain_type(hint: Any) -> type:
    """``list[str] | None`` gives list, ``float | None`` float."""
    inner = next((one for one in get_args(hint) if one is not NoneType), hint)
    plain: type = list if get_args(inner) else inner
    return plain


def _read_file(
    path: Path, command: str, *, must_exist: bool
) -> tuple[dict[str, object], dict[str, str], dict[str, str]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        if must_exist:
            raise InvalidParams("--config", f"there is no file {path}") from None
        return {}, {}, {}
    except (ValueError, RecursionError) as error:  # tomllib raises both for what is not TOML
        raise InvalidParams(str(path), f"is not a TOML file in UTF-8: {error}") from error
    aliases = _strings(path, content, "aliases", 'small = "a/b"')
    keys = _strings(path, content, "keys", 'stop = "escape"')
    tables = {name: content.pop(name) for name in COMMAND_TABLES if name in content}
    values = _checked(path, content, where="")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidParams(f"{path}: {name}", "must be a table of settings")
        checked = _checked(path, table, where=f"{name}.")
        if name == command:
            values |= checked
    return values, aliases, keys


def _strings(path: Path, content: dict[str, Any], name: str, example: str) -> dict[str, str]:
    """A table of strings, taken out of the file's content."""
    table = content.pop(name, {})
    if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
        raise InvalidParams(f"{path}: {name}", f"must be a table of strings, like {example}")
    return table


def _checked(path: Path, table: Mapping[str, object], *, where: str) -> dict[str, object]:
    types = setting_types()
    values: dict[str, object] = {}
    for written, value in table.items():
        key = written.replace("-", "_")
        if key not in types:
            raise InvalidParams(f"{path}: {where}{written}", _unknown(key, types))
        values[key] = _from_toml(f"{path}: {where}{written}", types[key], value)
    return values


def _from_toml(place: str, kind: type, value: object) -> object:
    # TOML's true is a Python int too, and an integer is a fair value for a number.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _to_float(value)
    if kind is list:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(one, str) for one in texts):
            return texts
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise InvalidParams(place, f"must be {_allowed(kind)}, not {value!r}")


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:  # TOML's integers have no bound; the range check refuses this one
        return math.inf if value > 0 else -math.inf


def _read_environ(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, kind in setting_types().items():
        text = environ.get(PREFIX + key.upper())
        if text is not None and (text or kind is bool):
            values[key] = value_from_text(PREFIX + key.upper(), kind, text)
    return values


def _to_bool(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return text.lower() in _TRUE


def _to_strings(text: str) -> list[str]:
    """One string, or several as a JSON array."""
    if not text.startswith("["):
        return [text]
    texts = json.loads(text)
    if not all(isinstance(one, str) for one in texts):
        raise ValueError(text)
    return list(texts)


def _allowed(kind: type) -> str:
    return {
        bool: "true or false (1 or 0 in the environment)",
        int: "a whole number",
        float: "a number",
        list: "a string or an array of strings",
    }.get(kind, "a string")


def _unknown(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"is no setting; {hint}Settings are: {', '.join(names)}"


def _misspelt(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like a setting's with a slip; others may be anybody's."""
    known = {PREFIX + key.upper() for key in setting_types()} | _OTHER_VARIABLES
    warnings = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if close:
                warnings.append(f"the variable {name} is no setting; did you mean {close[0]}?")
    return warnings
