"""Says what MLX computes on here, and keeps its compiler out of a CPU's answers.

MLX is imported inside, so that a machine without a backend can still be advised.
"""

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import BackendMissing

COMPILER = "g++"
"""What MLX's CPU backend calls."""

Kind = Literal["metal", "cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device that MLX uses by default."""

    kind: Kind
    name: str
    memory_bytes: int
    """What the device has in all; the machine's on a CPU and on unified memory."""
    is_unified: bool
    """Whether device and host share one memory."""
    working_set_bytes: int | None = None
    """What the device keeps resident by its own advice (Metal)."""


def device_facts() -> DeviceFacts:
    """Facts of MLX's default device.

    Raises:
        BackendMissing: MLX is not installed, or has no backend; says what to type.
    """
    mx = import_mlx()
    kind = _kind(mx)
    try:
        info: dict[str, Any] = dict(mx.device_info())
    except RuntimeError as error:
        raise BackendMissing(f"MLX finds no usable device: {error}") from error
    name = str(info.get("device_name") or platform.processor() or platform.machine())
    machine_bytes = total_memory_bytes()
    if kind == "cpu":
        return DeviceFacts(kind, name, machine_bytes, is_unified=True)
    own = int(info.get("memory_size") or info.get("total_memory") or machine_bytes)
    advice = info.get("max_recommended_working_set_size")
    return DeviceFacts(
        kind,
        name,
        own,
        is_unified=kind == "metal",
        working_set_bytes=int(advice) if advice else None,
    )


def import_mlx() -> Any:
    """``mlx.core``.

    Raises:
        BackendMissing: it cannot be imported; says what to type.
    """
    try:
        import mlx.core as mx
    except ImportError as error:
        raise BackendMissing(f"{_advice(sys.platform, platform.machine())} ({error})") from error
    return mx


def total_memory_bytes() -> int:
    """Physical memory of the machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def prepare_cpu() -> bool:
    """Disable compiled graphs if MLX computes on the CPU; return whether it was done.

    There ``mx.compile`` writes C++ and runs ``g++`` for each new fused kernel, about half a second
    each at first use. A step gains nothing from it (docs/runtime.md has the figures).

    Holds for the whole process, for functions that mlx-lm has already wrapped too. Call it on
    the engine thread before the first forward.

    Raises:
        BackendMissing: MLX has no backend.
    """
    mx = import_mlx()
    if mx.default_device() != mx.Device(mx.cpu):
        return False
    mx.disable_compile()
    return True


def jit_compiler() -> str | None:
    """Path of the compiler MLX would call on the CPU, if there is one."""
    return shutil.which(COMPILER)


def _kind(mx: Any) -> Kind:
    if mx.default_device() != mx.Device(mx.gpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def _advice(system: str, machine: str) -> str:
    if system.startswith("linux"):
        return (
            "MLX has no backend here: type pip install 'mlxcel[cpu]', "
            "or pip install 'mlxcel[cuda]' for an NVIDIA GPU"
        )
    if system == "darwin" and machine != "arm64":
        return "MLX needs an Apple silicon Mac and a Python built for arm64"
    return "MLX cannot be imported: type pip install --force-reinstall mlx"
