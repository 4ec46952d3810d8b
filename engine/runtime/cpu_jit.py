"""Switches MLX's run-time compiler off on the CPU.

There ``mx.compile`` writes C++ and runs ``g++`` for each new fused kernel, about half a second
each at first use, and falls back silently where there is no ``g++``. A step gains nothing from it
(docs/runtime.md has the figures); a first answer waits.
"""

import shutil

from engine.runtime.device import import_mlx

COMPILER = "g++"
"""What MLX's CPU backend calls."""


def prepare_cpu() -> bool:
    """Disable compiled graphs if MLX computes on the CPU; return whether it was done.

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
