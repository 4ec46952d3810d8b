"""Gives the interpreter mlx-lm's modules without running the costly `mlx_lm/__init__`.

That file imports mlx-lm's loaders and generation loops, and with them transformers: 0.9 s warm,
1.8 s cold (0.32.2), while the model modules alone take 0.03 s. The package object is therefore
made from its spec and left unexecuted. If that ever fails, the plain import is the fallback.

`mlx_lm.utils` also lowers the open-file limit of the whole process when it is imported
(`setrlimit(RLIMIT_NOFILE, (2048, 4096))`, 0.32.2); here it cannot.
"""

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.errors import UnsupportedModel

PACKAGE = "mlx_lm"

# What the engine needs of every version; a version without these gets the plain import.
_PROBES = ("mlx_lm.models.base", "mlx_lm.models.cache")

_MODULE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def import_mlx_lm() -> None:
    """Make `import mlx_lm.models.<family>` and the like work; does nothing the second time.

    A package that was imported the plain way before is left as it is.

    Raises:
        ImportError: mlx-lm, or the mlx below it, is not installed or cannot be loaded.
    """
    if PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        for name in _PROBES:
            importlib.import_module(name)
    except ImportError:
        _forget_package()
        with kept_file_limit():
            importlib.import_module(PACKAGE)


def import_generation() -> ModuleType:
    """Return `mlx_lm.generate`, the reference's generation loops; this does import transformers."""
    import_mlx_lm()
    with kept_file_limit():
        # sys.modules and not the attribute: a plainly imported package has a function there.
        importlib.import_module("mlx_lm.generate")
    return sys.modules["mlx_lm.generate"]


def model_classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the `Model` and `ModelArgs` classes for a `config.json`.

    Raises:
        UnsupportedModel: mlx-lm has no such family, or `model_type` is missing.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _MODULE_NAME.fullmatch(model_type):
        raise UnsupportedModel(f"config.json has no usable model_type (found {model_type!r})")
    import_mlx_lm()
    name = f"mlx_lm.models.{_module_for(model_type, _architectures(config))}"
    said = StringIO()  # stdout holds answers only
    try:
        with redirect_stdout(said):
            family = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise _unsupported(model_type) from error
        raise UnsupportedModel(
            f"model type {model_type!r} needs the Python package {error.name!r}"
        ) from error
    except SystemExit as error:  # mlx-lm's olmo, 0.32.2: it ends the program for want of a package
        raise UnsupportedModel(
            f"model type {model_type!r} needs a Python package: {said.getvalue().strip()}"
        ) from error
    if not (hasattr(family, "Model") and hasattr(family, "ModelArgs")):
        raise _unsupported(model_type)
    return family.Model, family.ModelArgs


def knows_family(config: Mapping[str, Any]) -> bool:
    """Whether mlx-lm has a module for this `config.json`; imports neither it nor MLX."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _MODULE_NAME.fullmatch(model_type):
        return False
    module = _module_for(model_type, _architectures(config))
    return any((Path(place) / "models" / f"{module}.py").is_file() for place in _package_places())


@contextmanager
def kept_file_limit() -> Iterator[None]:
    """Keep any import inside from changing this process's open-file limit.

    Restoring it afterwards would not do: a lowered hard limit cannot be raised again.
    """
    try:
        resource = importlib.import_module("resource")
    except ModuleNotFoundError:  # not on this platform; then nothing can lower the limit either
        yield
        return
    original = resource.setrlimit
    vars(resource)["setrlimit"] = lambda *_: None
    try:
        yield
    finally:
        vars(resource)["setrlimit"] = original


def _forget_package() -> None:
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith("mlx_lm.")]:
        del sys.modules[name]


def _unsupported(model_type: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"model type {model_type!r} is not one the installed mlx-lm can run; "
        "a newer mlx-lm may (pip install -U mlx-lm)"
    )


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    found = config.get("architectures")
    named = found if isinstance(found, list) else [found]
    return tuple(name for name in named if isinstance(name, str))


def _module_for(model_type: str, architectures: tuple[str, ...]) -> str:
    """Apply mlx-lm's own renaming tables: by architecture first, else by type."""
    by_type, by_architecture = _renamings()
    for architecture in architectures:
        if (model_type, architecture) in by_architecture:
            return by_architecture[model_type, architecture]
    return by_type.get(model_type, model_type)


def _renamings() -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Return mlx-lm's renaming tables, read from its source: importing them is what costs."""
    utils = sys.modules.get("mlx_lm.utils")
    if utils is None:
        source = _utils_source()
        by_type = _literal(source, "MODEL_REMAPPING")
        if by_type is not None:
            return by_type, _literal(source, "MODEL_ARCHITECTURE_REMAPPING") or {}
        with kept_file_limit():
            utils = importlib.import_module("mlx_lm.utils")
    return utils.MODEL_REMAPPING, getattr(utils, "MODEL_ARCHITECTURE_REMAPPING", {})


def _utils_source() -> str:
    for place in _package_places():
        file = Path(place) / "utils.py"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return ""


def _package_places() -> list[str]:
    """Return the package's folders, without importing it."""
    if PACKAGE in sys.modules:
        return list(sys.modules[PACKAGE].__path__)
    spec = importlib.util.find_spec(PACKAGE)
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _literal(source: str, name: str) -> Any:
    """Return the value of the top-level `name = {…}` in `source`, or None."""
    found = re.search(rf"^{name} = (\{{.*?^\}})", source, re.MULTILINE | re.DOTALL)
    if found is None:
        return None
    try:
        return ast.literal_eval(found.group(1))
    except (ValueError, SyntaxError):
        return None
