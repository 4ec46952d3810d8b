"""Points MLX's ``cblas_sgemm`` at another function, and proves it in a child process first.

The child does exactly what the parent will: a library that crashes or computes wrongly ends the
child, and the parent continues without it.
"""

import os
import subprocess
import sys
from pathlib import Path

from engine.runtime.blas_library import BlasError, BlasLibrary, check_sgemm, open_library
from engine.runtime.blas_shim import Shim, load_shim
from engine.runtime.elf import ElfError, mappings, read_slot, slot_address, write_slot

SYMBOL = "cblas_sgemm"
PROOF_SECONDS = 60


def mlx_library() -> Path:
    """The library of MLX that imports ``cblas_sgemm``, loaded by this call if need be.

    Raises:
        BlasError: MLX's CPU backend calls no BLAS that could be replaced.
    """
    import mlx.core  # noqa: F401 - loads the library

    loaded = {m.path for m in mappings() if Path(m.path).name.startswith("libmlx")}
    for path in sorted(loaded):
        try:
            slot_address(Path(path), SYMBOL)
        except ElfError:
            continue
        return Path(path)
    raise BlasError("MLX's library calls no cblas_sgemm that could be replaced")


def serve(library: BlasLibrary, shim: Shim | None, mlx: Path) -> None:
    """Send MLX's float32 products to ``shim``, or to the library itself.

    Raises:
        BlasError: a product came out wrong, or the pointer could not be changed. MLX then continues
            on with what it had.
    """
    target = shim.sgemm if shim else library.sgemm
    check_sgemm(target)
    try:
        slot = slot_address(mlx, SYMBOL)
        write_slot(slot, target)
    except ElfError as error:
        raise BlasError(str(error)) from error
    if read_slot(slot) != target:
        raise BlasError("MLX's pointer to cblas_sgemm did not keep its new value")


def open_route(path: Path, shim_path: Path | None, threads: int) -> tuple[BlasLibrary, Shim | None]:
    """Open a library, and the kernels before it where there are any.

    Raises:
        BlasError: one of the two cannot be used.
    """
    library = open_library(path)
    # The kernels share the library's products among their own threads.
    library.set_threads(1 if shim_path else threads)
    return library, load_shim(shim_path, library, threads) if shim_path else None


def prove(path: Path, shim_path: Path | None, threads: int) -> None:
    """Run the route in a child process, a product of MLX's own included.

    Raises:
        BlasError: it failed there; says how.
    """
    words = [str(path), str(shim_path or ""), str(threads)]
    command = [sys.executable, "-m", "engine.runtime.blas_proof", *words]
    places = os.pathsep.join(place for place in sys.path if place)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": places},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROOF_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BlasError(f"{path} could not be tried: {error}") from error
    if done.returncode < 0:
        raise BlasError(f"{path} crashed when it was tried (signal {-done.returncode})")
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise BlasError(said[-1] if said else f"{path} failed when it was tried")
