"""Finds the BLAS libraries of this machine and calls one through ctypes.

A library is opened locally: its names are not offered to anything else in the process.
"""

import ctypes
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM_NAMES = (
    "libopenblas.so.0", "libopenblas.so", "libblis.so.4", "libblis.so.3", "libmkl_rt.so.3",
    "libmkl_rt.so.2",
)  # fmt: skip
"""Fast libraries with a plain ``cblas_sgemm``; ``libblas.so.3`` is often the slow reference."""

_PREFIXES = ("", "scipy_")
_THREAD_SETTERS = (
    "openblas_set_num_threads", "bli_thread_set_num_threads", "MKL_Set_Num_Threads",
)  # fmt: skip
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112


class BlasError(Exception):
    """A library or shim cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class BlasLibrary:
    """An open BLAS."""

    path: Path
    sgemm: int
    """Address of its ``cblas_sgemm``, whatever name it has there."""
    handle: ctypes.CDLL

    def set_threads(self, threads: int) -> bool:
        """Set how many threads the library uses; false where it has no known switch."""
        for prefix in _PREFIXES:
            for name in _THREAD_SETTERS:
                if (setter := getattr(self.handle, prefix + name, None)) is not None:
                    setter(ctypes.c_int(threads))
                    return True
        return False


def bundled_library() -> Path | None:
    """The OpenBLAS that comes as the ``scipy-openblas32`` dependency."""
    spec = importlib.util.find_spec("scipy_openblas32")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return next(iter(sorted(Path(folder, "lib").glob("libscipy_openblas*.so*"))), None)
    return None


def system_libraries() -> Iterator[Path]:
    """Fast BLAS libraries in the places the loader looks, best first."""
    machine = f"{platform.machine()}-linux-gnu"
    listed = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    standard = [Path(sys.prefix, "lib"), Path("/usr/local/lib"), Path("/usr/lib", machine)]
    folders = [*listed, *standard, Path("/usr/lib64"), Path("/usr/lib"), Path("/lib")]
    for name in SYSTEM_NAMES:
        for folder in folders:
            if (folder / name).exists():
                yield folder / name
                break


def open_library(path: Path) -> BlasLibrary:
    """Open a BLAS.

    Raises:
        BlasError: it is no library of this machine or exports no ``cblas_sgemm``.
    """
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise BlasError(f"{path} cannot be loaded: {error}") from error
    for prefix in _PREFIXES:
        if (function := getattr(handle, f"{prefix}cblas_sgemm", None)) is not None:
            return BlasLibrary(path, function_address(function), handle)
    raise BlasError(f"{path} exports no cblas_sgemm")


def function_address(function: object) -> int:
    """Address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def check_sgemm(address: int) -> None:
    """Multiply small whole numbers in both ways MLX does, where the right answer is exact.

    Raises:
        BlasError: a product is wrong.
    """
    sgemm = ctypes.CFUNCTYPE(
        None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
        ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
    )(address)  # fmt: skip
    for rows, columns, depth in ((1, 128, 256), (3, 5, 7)):
        left = ([-2, 0, 2, -1, 1] * rows * depth)[: rows * depth]
        right = ([-3, 1, -2, 2, -1, 3, 0] * columns * depth)[: columns * depth]
        a, b = ((ctypes.c_float * len(values))(*values) for values in (left, right))
        for transposed, step, stride in ((_TRANSPOSED, 1, depth), (_PLAIN, columns, 1)):
            c = (ctypes.c_float * (rows * columns))(*[float("nan")] * (rows * columns))
            shape = (_ROW_MAJOR, _PLAIN, transposed, rows, columns, depth)
            ldb = max(step, stride)
            sgemm(*shape, 1.0, ctypes.addressof(a), depth, ctypes.addressof(b), ldb, 0.0,
                  ctypes.addressof(c), columns)  # fmt: skip
            first = right[: depth * step : step]
            last = right[(columns - 1) * stride :][: depth * step : step]
            wanted = (_dot(left[:depth], first), _dot(left[-depth:], last))
            if (c[0], c[rows * columns - 1]) != wanted:
                raise BlasError("a small product came out wrong")


def _dot(left: list[int], right: list[int]) -> int:
    return sum(x * y for x, y in zip(left, right, strict=False))
