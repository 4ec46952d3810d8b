"""Where the command line keeps its files, and paths as a person types them.

Folders of models are the engine's: see `engine.runtime.folders`.
"""

from collections.abc import Mapping
from pathlib import Path

from engine.errors import InvalidParams
from engine.runtime.folders import expanded


def options_file(environ: Mapping[str, str]) -> Path:
    """The options file that is read when nobody names one: ``MLXCEL_CONFIG``, else the platform's.

    On Linux the platform's is ``~/.config/mlxcel/config.toml``.
    """
    if named := environ.get("MLXCEL_CONFIG"):
        return expanded("MLXCEL_CONFIG", named)
    from platformdirs import user_config_path

    return user_config_path("mlxcel", appauthor=False) / "config.toml"


def data_home(environ: Mapping[str, str]) -> Path:
    """The folder of saved chats: ``data`` in ``MLXCEL_HOME``, else the platform's.

    On Linux the platform's is ``~/.local/share/mlxcel``.
    """
    if home := environ.get("MLXCEL_HOME"):
        return expanded("MLXCEL_HOME", home).absolute() / "data"
    from platformdirs import user_data_path

    return user_data_path("mlxcel", appauthor=False)


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
    return expanded(name, path)
