"""What is said of a device and to a person without a backend; no compiler runs on a CPU."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import BackendMissing
from engine.runtime import device
from engine.runtime.device import device_facts, import_mlx, prepare_cpu, total_memory_bytes

PROGRAM = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
@mx.compile
def swish(x, y):
    return x * mx.sigmoid(x) * y + mx.exp(-y)
from engine.runtime.device import prepare_cpu
if {prepared}:
    assert prepare_cpu()
mx.eval(swish(mx.ones(9), mx.ones(9)))
"""


def fake_mlx(default: str, facts: dict[str, object], *, metal: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        cpu="cpu",
        gpu="gpu",
        Device=lambda kind: kind,
        default_device=lambda: default,
        device_info=lambda: facts,
        metal=SimpleNamespace(is_available=lambda: metal),
    )


def facts_of(monkeypatch: pytest.MonkeyPatch, mx: SimpleNamespace) -> device.DeviceFacts:
    monkeypatch.setattr(device, "import_mlx", lambda: mx)
    return device_facts()


def test_this_machine_has_a_device():
    facts = device_facts()
    assert facts.kind in ("metal", "cuda", "cpu")
    assert facts.name
    assert facts.memory_bytes > 2**28


def test_a_cpu_has_the_machine_s_memory(monkeypatch: pytest.MonkeyPatch):
    facts = facts_of(monkeypatch, fake_mlx("cpu", {"device_name": "Zen"}))
    assert (facts.kind, facts.name, facts.is_unified) == ("cpu", "Zen", True)
    assert facts.memory_bytes == total_memory_bytes()


def test_metal_reports_its_working_set(monkeypatch: pytest.MonkeyPatch):
    info = {"device_name": "M4", "memory_size": 16, "max_recommended_working_set_size": 11}
    facts = facts_of(monkeypatch, fake_mlx("gpu", info, metal=True))
    assert (facts.kind, facts.memory_bytes, facts.working_set_bytes) == ("metal", 16, 11)
    assert facts.is_unified


def test_cuda_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch):
    facts = facts_of(monkeypatch, fake_mlx("gpu", {"device_name": "H", "total_memory": 24}))
    assert (facts.kind, facts.memory_bytes, facts.is_unified) == ("cuda", 24, False)


def test_a_device_that_cannot_be_asked_is_a_missing_backend(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> dict[str, object]:
        raise RuntimeError("no driver")

    mx = fake_mlx("gpu", {})
    mx.device_info = refuse
    with pytest.raises(BackendMissing, match="no driver"):
        facts_of(monkeypatch, mx)


def test_mlx_without_its_library_names_both_extras(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(BackendMissing) as caught:
        import_mlx()
    for words in ("pip install 'mlxcel[cpu]'", "pip install 'mlxcel[cuda]'"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("system", "machine", "words"),
    [
        ("darwin", "x86_64", "Apple silicon"),
        ("darwin", "arm64", "--force-reinstall mlx"),
        ("win32", "AMD64", "--force-reinstall mlx"),
    ],
)
def test_each_system_has_its_own_advice(system: str, machine: str, words: str):
    assert words in device._advice(system, machine)


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
    monkeypatch.setattr(device, "import_mlx", lambda: fake_mlx("gpu", {}))
    assert not prepare_cpu()
