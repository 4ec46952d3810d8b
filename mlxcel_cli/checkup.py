"""Examines the machine for ``mlxcel doctor``: facts as JSON values, and the lines for people.

Runs on the engine thread: the speed of the BLAS is measured with MLX.
"""

import dataclasses
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine.errors import BackendMissing
from engine.models.catalog import ModelPlaces, local_models
from engine.runtime.blas import (
    BlasReport,
    Route,
    measure_gflops,
    measure_row_gb_per_s,
    prepare_blas,
)
from engine.runtime.blas_shim import find_compiler
from engine.runtime.device import DeviceFacts, device_facts, jit_compiler
from engine.runtime.memory import memory_available
from mlxcel_cli.config import Settings
from mlxcel_cli.output import printable

PACKAGES = ("mlxcel", "mlx", "mlx-lm", "tokenizers", "scipy-openblas32")
LABEL_COLUMNS, LINE_COLUMNS = 12, 80
LOW_DISK_BYTES = 2 * 2**30

_ROUTES = {
    Route.KERNELS: "few-row kernels before",
    Route.LIBRARY: "no kernels; only",
    Route.STOCK: "what MLX brought (slow)",
    Route.OFF: "what MLX brought, as MLXCEL_BLAS says",
    Route.NATIVE: "MLX's own",
}


def examine(settings: Settings, options_file: Path) -> dict[str, Any]:
    """Every fact, ready for JSON. A missing backend is a warning, not an error."""
    checkup: dict[str, Any] = {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "device": None,
        "blas": None,
        "memory": None,
        "models": _models(settings),
        "compiler": {"kernels": _text(find_compiler()), "mlx_cpu_jit": jit_compiler()},
        "options_file": {"path": str(options_file), "exists": options_file.is_file()},
        "warnings": list(settings.warnings),
    }
    try:
        report = prepare_blas(settings.cache_home, settings.machine.blas)
        device = device_facts()
    except BackendMissing as error:
        checkup["warnings"].append(str(error))
        return checkup
    checkup["device"] = dataclasses.asdict(device)
    checkup["blas"] = _blas(report)
    checkup["memory"] = {
        "total_bytes": device.memory_bytes,
        "available_bytes": memory_available(device),
    }
    checkup["warnings"] += _warnings(checkup, device, report)
    return checkup


def report_lines(checkup: dict[str, Any]) -> Iterator[str]:
    """The report for people, at most 80 columns wide where words allow."""
    versions = ", ".join(f"{name} {number or '-'}" for name, number in checkup["versions"].items())
    yield from _row("versions", versions)
    yield from _row("python", checkup["python"])
    yield from _row("system", checkup["system"])
    if (device := checkup["device"]) is not None:
        yield from _row("device", f"{device['kind']}: {device['name']}")
        yield from _row("blas", _blas_text(checkup["blas"]))
        memory = checkup["memory"]
        yield from _row(
            "memory",
            f"{_gib(memory['available_bytes'])} available of {_gib(memory['total_bytes'])}",
        )
    compiler = checkup["compiler"]
    yield from _row("compiler", compiler["kernels"] or "none (cc, gcc or clang)")
    yield from _row("settings", _file_text(checkup["options_file"]))
    models = checkup["models"]
    free = f"{_gib(models['free_bytes'])} free"
    yield from _row("cache", f"{models['cache_home']} ({free})")
    for number, model in enumerate(models["local"]):
        state = f"broken: {model['problem']}" if model["problem"] else _gib(model["size_bytes"])
        yield from _row("" if number else "models", f"{model['name']} ({model['kind']}, {state})")
    if not models["local"]:
        yield from _row("models", "none yet; mlxcel generate brings the starter")
    for warning in checkup["warnings"]:
        yield from _row("warning", warning)
    if not checkup["warnings"]:
        yield from _row("warnings", "none")


def _blas(report: BlasReport) -> dict[str, Any]:
    return {
        "route": report.route.value,
        "library": _text(report.library),
        "threads": report.threads,
        "notes": list(report.notes),
        "gflops": round(measure_gflops(), 1),
        "row_gb_per_s": round(measure_row_gb_per_s(), 1),
    }


def _blas_text(blas: dict[str, Any]) -> str:
    who = _ROUTES[Route(blas["route"])]
    library = f" {Path(blas['library']).name}" if blas["library"] else ""
    threads = f", threads: {blas['threads']}" if blas["threads"] else ""
    speed = f"{blas['gflops']} GFLOP/s, one row {blas['row_gb_per_s']} GB/s"
    return f"{who}{library}{threads}; {speed}"


def _models(settings: Settings) -> dict[str, Any]:
    places = ModelPlaces(
        home=settings.cache_home, hub_cache=settings.hub_cache, aliases=settings.aliases
    )
    folder = settings.cache_home
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = local_models(places)
    return {
        "cache_home": str(settings.cache_home),
        "hub_cache": str(settings.hub_cache),
        "free_bytes": shutil.disk_usage(folder).free,
        "local": [
            {
                "name": model.name,
                "kind": model.kind.value,
                "path": str(model.path),
                "size_bytes": model.size_bytes,
                "problem": model.problem,
            }
            for model in found
        ],
    }


def _warnings(checkup: dict[str, Any], device: DeviceFacts, report: BlasReport) -> list[str]:
    warnings = list(report.notes)
    if report.route is Route.STOCK:
        warnings.append("matrices are slow: type pip install scipy-openblas32")
    elif report.route is Route.LIBRARY and find_compiler() is None:
        warnings.append("install a C compiler (apt install gcc): answers come several times faster")
    if checkup["models"]["free_bytes"] < LOW_DISK_BYTES:
        warnings.append("the cache's disk is nearly full: mlxcel models rm, or set MLXCEL_HOME")
    broken = [model["name"] for model in checkup["models"]["local"] if model["problem"]]
    warnings += [f"the model {name} is broken: type mlxcel models rm {name}" for name in broken]
    if device.kind == "cpu" and shutil.which("nvidia-smi"):
        warnings.append("an NVIDIA GPU is here: type pip install 'mlxcel[cuda]' to use it")
    return warnings


def _row(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width=LINE_COLUMNS,
        initial_indent=label.ljust(LABEL_COLUMNS),
        subsequent_indent=" " * LABEL_COLUMNS,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _file_text(file: dict[str, Any]) -> str:
    return f"{file['path']}{'' if file['exists'] else ' (not there)'}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
