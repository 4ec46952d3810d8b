"""Gives MLX's CPU backend on Linux a fast BLAS, by the best route that works on this machine.

MLX's wheel brings the slow reference BLAS. In order of preference MLX's ``cblas_sgemm`` goes to

1. our few-row kernels before the OpenBLAS of the ``scipy-openblas32`` dependency,
2. that OpenBLAS itself, where no compiler can build the kernels,
3. the same two ways for a fast BLAS of the system,
4. what MLX came with.

A route is proved once in a child process; the result is cached. Why so: docs/adr/0006-fast-blas.md.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.runtime.blas_library import BlasError, bundled_library, system_libraries
from engine.runtime.blas_shim import compile_shim, find_compiler, is_sound, stamp
from engine.runtime.blas_slot import mlx_library, open_route, prove, serve
from engine.runtime.threads import blas_threads

FOLDER = "blas"
"""Where the kernels and the notes on routes lie, under the cache."""

RETRY_SECONDS = 24 * 3600
"""How long a route that failed is not tried again."""


class Route(StrEnum):
    """Who computes MLX's float32 products."""

    KERNELS = "kernels"
    """The few-row kernels, and a fast BLAS for the rest."""
    LIBRARY = "library"
    """A fast BLAS alone."""
    STOCK = "stock"
    """The BLAS that MLX brought, because no other could be used."""
    OFF = "off"
    """The BLAS that MLX brought, because the user asked for it."""
    NATIVE = "native"
    """MLX's own: on this device or system it needs no help."""


@dataclass(frozen=True, slots=True)
class BlasReport:
    """What was chosen, and why nothing better."""

    route: Route
    library: Path | None = None
    threads: int | None = None
    notes: tuple[str, ...] = ()


def prepare_blas(cache: Path, setting: str | None, threads: int | None = None) -> BlasReport:
    """Choose and install the BLAS; never raises, and leaves MLX as it was where nothing works.

    Args:
        cache: mlxcel's cache folder; the kernels are built there.
        setting: ``off``, a library's path, or None for the best.
        threads: of one product; None follows the environment, the cores and the load.

    May be called before or after MLX is imported, and again. Products that run meanwhile on
    another thread are served by the old or the new BLAS.
    """
    if setting == "off":
        return BlasReport(Route.OFF)
    if not sys.platform.startswith("linux") or not _is_on_cpu():
        return BlasReport(Route.NATIVE)
    notes: list[str] = []
    try:
        mlx = mlx_library()
    except (BlasError, OSError) as error:
        return BlasReport(Route.STOCK, notes=(str(error),))
    count = blas_threads(threads)
    if setting and not _may_exist(setting):
        notes.append(f"{setting} does not exist")
        setting = None
    for route, library in _routes(setting):
        attempt = _serve_kernels if route is Route.KERNELS else _serve_library
        try:
            attempt(library, mlx, cache / FOLDER, count)
        except (BlasError, OSError) as error:
            notes.append(str(error))
        else:
            return BlasReport(route, library, count, tuple(dict.fromkeys(notes)))
    return BlasReport(Route.STOCK, notes=(*notes, "no fast BLAS was found: matrices are slow"))


def measure_gflops(seconds: float = 0.2) -> float:
    """GFLOP/s of MLX's float32 matmul, 512 cubed, the best of what ``seconds`` allow."""
    return 2e-9 * 512**3 / _best_seconds(512, 512, seconds)


def measure_row_gb_per_s(seconds: float = 0.2) -> float:
    """GB/s at which MLX reads float32 weights in a one-row product: what decoding lives on."""
    side = 4096
    return 4e-9 * side**2 / _best_seconds(1, side, seconds)


def _best_seconds(rows: int, side: int, seconds: float) -> float:
    import mlx.core as mx

    left, right = mx.ones((rows, side)), mx.ones((side, side))
    mx.eval(left, right, left @ right.T)
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        mx.eval(left @ right.T)
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def _is_on_cpu() -> bool:
    try:
        import mlx.core as mx
    except ImportError:
        return False
    return mx.default_device() == mx.Device(mx.cpu)


def _may_exist(setting: str) -> bool:
    """Whether there is such a file; a plain name is the loader's to find."""
    return os.sep not in setting or _expanded(setting).exists()


def _expanded(setting: str) -> Path:
    try:
        return Path(setting).expanduser()
    except RuntimeError:  # a home folder that nobody has: then it is no file either
        return Path(setting)


def _routes(setting: str | None) -> Iterator[tuple[Route, Path]]:
    if setting:
        named = _expanded(setting)
        yield from ((Route.KERNELS, named), (Route.LIBRARY, named))
    bundled = bundled_library()
    for library in ([bundled] if bundled else []) + list(system_libraries()):
        yield from ((Route.KERNELS, library), (Route.LIBRARY, library))


def _serve_kernels(library: Path, mlx: Path, folder: Path, threads: int) -> None:
    built = folder / f"{stamp(library, mlx)}.so"
    if is_sound(built):
        try:
            serve(*open_route(library, built, threads), mlx)
        except BlasError:
            built.unlink(missing_ok=True)
        else:
            return
    compiler = find_compiler()
    if compiler is None:
        raise BlasError(
            "no C compiler (cc, gcc or clang): one-row products take several times as long"
        )
    with _cached_failure(folder / f"{stamp(library, mlx, compiler)}.failed"):
        fresh = folder / f"{built.stem}.{os.getpid()}.so"
        try:
            compile_shim(compiler, fresh)
            prove(library, fresh, threads)
            fresh.replace(built)
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink()
        serve(*open_route(library, built, threads), mlx)


def _serve_library(library: Path, mlx: Path, folder: Path, threads: int) -> None:
    proof = folder / f"{stamp('library', library, mlx)}.proved"
    with _cached_failure(proof.with_suffix(".failed")):
        if not proof.exists():
            prove(library, None, threads)
            with contextlib.suppress(OSError):
                proof.parent.mkdir(parents=True, exist_ok=True)
                proof.touch()
        serve(*open_route(library, None, threads), mlx)


@contextlib.contextmanager
def _cached_failure(record: Path) -> Iterator[None]:
    """Keep a failure on record, and repeat it for a day without trying again."""
    with contextlib.suppress(OSError):
        if time.time() - record.stat().st_mtime < RETRY_SECONDS:
            raise BlasError(record.read_text(encoding="utf-8").strip())
    try:
        yield
    except BlasError as error:
        with contextlib.suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(f"{error}\n", encoding="utf-8")
        raise
