"""Where models and compiled parts are kept: the platform's own folders, or the environment's."""

import os
from collections.abc import Mapping
from pathlib import Path

from engine.errors import InvalidParams


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of converted models and compiled parts: ``MLXCEL_HOME``, else the platform's."""
    if home := environ.get("MLXCEL_HOME"):
        return expanded("MLXCEL_HOME", home).absolute()
    # platformdirs costs some milliseconds that --help need not pay.
    from platformdirs import user_cache_path

    return user_cache_path("mlxcel", appauthor=False)


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder where Hugging Face's own tools keep what they download."""
    if cache := environ.get("HF_HUB_CACHE"):
        return expanded("HF_HUB_CACHE", cache)
    if home := environ.get("HF_HOME"):
        return expanded("HF_HOME", home) / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded("XDG_CACHE_HOME", base) / "huggingface" / "hub"


def hub_is_offline(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether HF_HUB_OFFLINE forbids asking a hub."""
    return environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def expanded(variable: str, path: str) -> Path:
    """The path with ``~`` and ``~user`` replaced.

    Raises:
        InvalidParams: there is no such user, or no home folder is known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidParams(variable, f"{path} names no home folder that is known here") from None
