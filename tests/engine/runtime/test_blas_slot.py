"""Proves that MLX's library is found and that a failing child says what failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.runtime import blas_slot
from engine.runtime.blas_library import BlasError, bundled_library
from engine.runtime.blas_slot import mlx_library, prove

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or bundled_library() is None, reason="Linux only"
)


def test_mlx_s_library_is_found():
    assert mlx_library().name.startswith("libmlx")


def test_the_bundled_library_is_proved():
    prove(bundled_library(), None, 1)


def test_a_child_s_words_are_reported(tmp_path: Path):
    with pytest.raises(BlasError, match=r"none\.so cannot be loaded"):
        prove(tmp_path / "none.so", None, 1)


def test_a_child_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blas_slot, "PROOF_SECONDS", 0.01)
    with pytest.raises(BlasError, match="could not be tried"):
        prove(bundled_library(), None, 1)


def test_a_child_that_crashes_names_its_signal(monkeypatch: pytest.MonkeyPatch):
    crash = subprocess.CompletedProcess([], -11, b"", b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: crash)
    with pytest.raises(BlasError, match="signal 11"):
        prove(bundled_library(), None, 1)
