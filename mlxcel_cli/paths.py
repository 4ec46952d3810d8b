"""Where mlxcel keeps its files: the platform's own folders, unless the environment says else."""

from collections.abc import Mapping
from pathlib import Path


def cache_home(environ: Mapping[str, str]) -> Path:
    """The folder of converted models and compiled parts: ``MLXCEL_HOME``, else the platform's."""
    if home := environ.get("MLXCEL_HOME"):
        return Path(home).expanduser().absolute()
    # platformdirs costs some milliseconds that --help need not pay.
    from platformdirs import user_cache_path

    return user_cache_path("mlxcel", appauthor=False)


def options_file(environ: Mapping[str, str]) -> Path:
    """The options file that is read when nobody names one: ``MLXCEL_CONFIG``, else the platform's.

    On Linux the platform's is ``~/.config/mlxcel/config.toml``.
    """
    if named := environ.get("MLXCEL_CONFIG"):
        return Path(named).expanduser()
    from platformdirs import user_config_path

    return user_config_path("mlxcel", appauthor=False) / "config.toml"


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder where Hugging Face's own tools keep what they download."""
    if cache := environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"
