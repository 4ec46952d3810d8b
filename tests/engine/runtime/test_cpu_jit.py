"""Proves that no compiler runs while the CPU computes."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.runtime import cpu_jit
from engine.runtime.cpu_jit import prepare_cpu

PROGRAM = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
@mx.compile
def swish(x, y):
    return x * mx.sigmoid(x) * y + mx.exp(-y)
from engine.runtime.cpu_jit import prepare_cpu
if {prepared}:
    assert prepare_cpu()
mx.eval(swish(mx.ones(9), mx.ones(9)))
"""


@pytest.mark.parametrize("prepared", [True, False])
def test_functions_wrapped_before_are_not_compiled_after(tmp_path: Path, prepared: bool):
    called = tmp_path / "called"
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\ntouch {called}\nexit 1\n")
    compiler.chmod(0o755)
    places = os.pathsep.join(place for place in sys.path if place)
    environment = {
        **os.environ,
        "PYTHONPATH": places,
        "TMPDIR": str(tmp_path),
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    code = PROGRAM.format(prepared=prepared)
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    if prepared:
        assert done.returncode == 0
    assert called.exists() != prepared


def test_a_gpu_keeps_its_compiler(monkeypatch: pytest.MonkeyPatch):
    mx = SimpleNamespace(
        cpu="cpu", gpu="gpu", Device=lambda kind: kind, default_device=lambda: "gpu"
    )
    monkeypatch.setattr(cpu_jit, "import_mlx", lambda: mx)
    assert not prepare_cpu()
