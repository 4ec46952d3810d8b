"""Where mlxcel keeps its files: the platform's own folders, unless the environment says else."""

from collections.abc import Mapping
from pathlib import Path

from engine.errors import InvalidParams


def cache_home(environ: Mapping[str, str]) -> Path:
    """The folder of converted models and compiled parts: ``MLXCEL_HOME``, else the platform's."""
    if home := environ.get("MLXCEL_HOME"):
        return _expanded("MLXCEL_HOME", home).absolute()
    # platformdirs costs some milliseconds that --help need not pay.
    from platformdirs import user_cache_path

    return user_cache_path("mlxcel", appauthor=False)


def options_file(environ: Mapping[str, str]) -> Path:
    """The options file that is read when nobody names one: ``MLXCEL_CONFIG``, else the platform's.

    On Linux the platform's is ``~/.config/mlxcel/config.toml``.
    """
    if named := environ.get("MLXCEL_CONFIG"):
        return _expanded("MLXCEL_CONFIG", named)
    from platformdirs import user_config_path

    return user_config_path("mlxcel", appauthor=False) / "config.toml"


def data_home(environ: Mapping[str, str]) -> Path:
    """The folder of saved chats: ``data`` in ``MLXCEL_HOME``, else the platform's.

    On Linux the platform's is ``~/.local/share/mlxcel``.
    """
    if home := environ.get("MLXCEL_HOME"):
        return _expanded("MLXCEL_HOME", home).absolute() / "data"
    from platformdirs import user_data_path

    return user_data_path("mlxcel", appauthor=False)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder where Hugging Face's own tools keep what they download."""
    if cache := environ.get("HF_HUB_CACHE"):
        return _expanded("HF_HUB_CACHE", cache)
    if home := environ.get("HF_HOME"):
        return _expanded("HF_HOME", home) / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded("XDG_CACHE_HOME", base) / "huggingface" / "hub"


def typed_path(name: str, path: str) -> Path:
    """A path as a person typed it, ``~`` and ``~user`` replaced.

    Args:
        name: what to call it where it is wrong.
        path: what was typed.

    Raises:
        InvalidParams: there is no such user, no home folder is known, or it holds a null byte.
    """
    if "\0" in path:
        raise InvalidParams(name, "is no path: it holds a null byte")
    return _expanded(name, path)


def _expanded(variable: str, path: str) -> Path:
    """The path with ``~`` and ``~user`` replaced.

    Raises:
        InvalidParams: there is no such user, or no home folder is known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidParams(variable, f"{path} names no home folder that is known here") from None
