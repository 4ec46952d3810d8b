"""Compiles the few-row kernels of ``blas_shim.c`` once and loads them.

The cache holds one file per source, machine, compiler and BLAS. A file ends with the digest of
what stands before it (the loader ignores what follows an ELF image), so a damaged file is seen
before it is loaded. Files appear by rename, so two processes may build at once.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.runtime.blas_library import BlasError, BlasLibrary, function_address

SOURCE = Path(__file__).with_name("blas_shim.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-fPIC", "-shared", "-pthread", "-ffp-contract=fast")
COMPILE_SECONDS = 60
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Shim:
    """The loaded kernels."""

    sgemm: int
    """Address of the function that serves MLX."""
    handle: ctypes.CDLL

    @property
    def products(self) -> int:
        """Products served so far, by the kernels or the library behind them."""
        return int(self.handle.mlxcel_blas_served())


def find_compiler() -> Path | None:
    """The C compiler on PATH."""
    found = (shutil.which(name) for name in COMPILERS)
    return next((Path(path) for path in found if path), None)


def stamp(*parts: object) -> str:
    """A short name for the file that depends on these parts; a path counts with size and date."""
    words = [platform.machine(), hashlib.sha256(SOURCE.read_bytes()).hexdigest()]
    for part in parts:
        words.append(str(part))
        if isinstance(part, Path):
            with contextlib.suppress(OSError):
                facts = part.stat()
                words.append(f"{facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def compile_shim(compiler: Path, target: Path, source: Path = SOURCE) -> None:
    """Build the shim at ``target``.

    Raises:
        BlasError: the compiler fails or the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            built = Path(folder, "shim.so")
            command = [str(compiler), *FLAGS, str(source), "-o", str(built)]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
            image = built.read_bytes()
            built.write_bytes(image + hashlib.sha256(image).digest())
            built.replace(target)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise BlasError(f"{compiler} failed: {said[0] if said else error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        raise BlasError(f"{compiler} did not finish in {COMPILE_SECONDS} s") from error
    except OSError as error:
        raise BlasError(f"the kernels cannot be built: {error}") from error


def is_sound(path: Path) -> bool:
    """Whether a built file is there and is what was written."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    image, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(image).digest() == digest


def load_shim(path: Path, library: BlasLibrary, threads: int) -> Shim:
    """Load a built shim in front of ``library``.

    Raises:
        BlasError: the file is damaged or of another machine.
    """
    if not is_sound(path):
        raise BlasError(f"{path} is damaged")
    try:
        handle = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        handle.mlxcel_blas_init(ctypes.c_void_p(library.sgemm), ctypes.c_int(threads))
        handle.mlxcel_blas_served.restype = ctypes.c_long
        return Shim(function_address(handle.cblas_sgemm), handle)
    except (OSError, AttributeError) as error:
        raise BlasError(f"{path} cannot be loaded: {error}") from error
