"""Proves that the proof fails when MLX's products are not served or not right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.runtime.blas_library import bundled_library

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or bundled_library() is None, reason="Linux only"
)


def run_proof(before: str) -> subprocess.CompletedProcess[str]:
    call = f"blas_proof.main([{str(bundled_library())!r}, '', '1'])"
    code = f"from engine.runtime import blas_proof\n{before}\n{call}"
    places = os.pathsep.join(place for place in sys.path if place)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_sound_route_passes_in_silence(tmp_path: Path):
    done = run_proof("")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_wrong_product_of_mlx_fails_with_words():
    wrong = (
        "import mlx.core as mx\n"
        "right = mx.array.__matmul__\n"
        "mx.array.__matmul__ = lambda a, b: right(a, b) + 1"
    )
    done = run_proof(wrong)
    assert done.returncode == 1
    assert done.stderr.strip() == "MLX's products came out wrong"
