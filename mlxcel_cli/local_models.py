"""Names of the models on this machine, found quickly enough for the shell's TAB."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from engine.errors import InvalidParams
from engine.runtime.folders import cache_home, hub_cache
from mlxcel_cli.paths import options_file

STARTER = "starter"


def local_model_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Aliases, hub ids and converted models that are here, sorted; reads no model.

    What cannot be read is left out: a TAB is no place for an error.
    """
    names = {STARTER}
    with suppress(InvalidParams):
        names.update(_aliases(options_file(environ)))
    with suppress(InvalidParams):
        names.update(_hub_ids(hub_cache(environ)))
    with suppress(InvalidParams):
        names.update(_converted(cache_home(environ) / "models"))
    return sorted(names)


def _aliases(path: Path) -> list[str]:
    with suppress(OSError, ValueError, RecursionError):
        aliases = tomllib.loads(path.read_text(encoding="utf-8")).get("aliases")
        if isinstance(aliases, dict):
            return list(aliases)
    return []


def _hub_ids(cache: Path) -> Iterator[str]:
    for folder in _folders(cache):
        if folder.name.startswith("models--"):
            yield folder.name.removeprefix("models--").replace("--", "/")


def _converted(home: Path) -> Iterator[str]:
    for folder in _folders(home):
        if (folder / "config.json").is_file():
            yield folder.name


def _folders(parent: Path) -> list[Path]:
    with suppress(OSError):
        return [one for one in parent.iterdir() if one.is_dir() and not one.name.startswith(".")]
    return []
