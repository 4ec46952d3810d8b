"""Proves what is found and what is refused as a BLAS."""

import ctypes
import sys
from pathlib import Path

import pytest

from engine.runtime import blas_library
from engine.runtime.blas_library import (
    BlasError,
    bundled_library,
    check_sgemm,
    function_address,
    open_library,
    system_libraries,
)

needs_bundled = pytest.mark.skipif(bundled_library() is None, reason="no scipy-openblas32 here")


@needs_bundled
def test_the_bundled_library_multiplies_rightly_and_takes_a_thread_count():
    library = open_library(bundled_library())
    check_sgemm(library.sgemm)
    assert library.set_threads(1)


def test_a_product_that_is_wrong_is_noticed():
    arguments = [ctypes.c_int] * 6 + [
        ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
        ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
    ]  # fmt: skip
    lazy = ctypes.CFUNCTYPE(None, *arguments)(lambda *_: None)
    with pytest.raises(BlasError, match="came out wrong"):
        check_sgemm(function_address(lazy))


def test_a_missing_library_is_named(tmp_path: Path):
    with pytest.raises(BlasError, match=r"libnone\.so cannot be loaded"):
        open_library(tmp_path / "libnone.so")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_a_library_without_the_symbol_is_refused():
    with pytest.raises(BlasError, match="exports no cblas_sgemm"):
        open_library(Path("libm.so.6"))


def test_system_libraries_come_best_first_and_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in ("libblis.so.4", "libopenblas.so.0"):
            (tmp_path / folder / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/one:{tmp_path}/two")
    monkeypatch.setattr(blas_library, "SYSTEM_NAMES", ("libopenblas.so.0", "libblis.so.4"))
    assert list(system_libraries()) == [
        tmp_path / "one/libopenblas.so.0",
        tmp_path / "one/libblis.so.4",
    ]
