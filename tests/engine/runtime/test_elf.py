"""Proves that the right pointer is found, and that nothing else is ever written."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from engine.runtime.blas_shim import find_compiler
from engine.runtime.elf import ElfError, read_slot, slot_address, write_slot

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or find_compiler() is None, reason="needs Linux and cc"
)

SOURCE = """
int abs(int); int labs_ours(int x) { return -x; }
int call(int x) { return abs(x) + 1; }
"""


def build(folder: Path, *flags: str) -> Path:
    source, target = folder / "caller.c", folder / "caller.so"
    source.write_text(SOURCE)
    command = [find_compiler(), "-shared", "-fPIC", "-fno-builtin", *flags, source, "-o", target]
    subprocess.run(command, check=True)
    return target


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-Wl,-z,lazy"], id="bound at the first call"),
        pytest.param(["-Wl,-z,now,-z,relro"], id="bound at load, then read-only"),
        pytest.param(["-fno-plt", "-Wl,-z,now"], id="called without a PLT"),
        pytest.param(["-Wl,-z,noseparate-code"], id="code and headers in one segment"),
    ],
)
@pytest.mark.parametrize("is_called_before", [False, True])
def test_a_rewritten_slot_redirects_the_library_s_calls(
    tmp_path: Path, flags: list[str], is_called_before: bool
):
    path = build(tmp_path, *flags)
    library = ctypes.CDLL(str(path))
    if is_called_before:
        assert library.call(-5) == 6
    slot = slot_address(path, "abs")
    ours = ctypes.cast(library.labs_ours, ctypes.c_void_p).value
    assert ours is not None
    write_slot(slot, ours)
    assert read_slot(slot) == ours
    assert library.call(5) == -4


def test_a_symbol_that_is_not_imported_is_an_error(tmp_path: Path):
    path = build(tmp_path)
    library = ctypes.CDLL(str(path))
    assert library.call(1) == 2
    for name in ("cblas_sgemm", "bs", "call"):
        with pytest.raises(ElfError, match="not imported"):
            slot_address(path, name)


def test_a_library_that_is_not_loaded_is_an_error(tmp_path: Path):
    with pytest.raises(ElfError, match="not loaded"):
        slot_address(tmp_path / "libnone.so", "abs")


def test_only_a_pointer_to_code_is_replaced_and_only_by_one(tmp_path: Path):
    path = build(tmp_path, "-Wl,-z,lazy")
    library = ctypes.CDLL(str(path))
    slot = slot_address(path, "abs")
    value = ctypes.c_uint64(12345)
    code = ctypes.cast(library.call, ctypes.c_void_p).value
    assert code is not None
    for address, target in ((slot, 12345), (slot + 4, code), (0, code)):
        with pytest.raises(ElfError):
            write_slot(address, target)
    with pytest.raises(ElfError):
        write_slot(ctypes.addressof(value), code)
    assert (value.value, library.call(-2)) == (12345, 3)
