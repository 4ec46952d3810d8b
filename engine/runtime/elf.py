"""Finds and rewrites the slot through which a loaded library calls an imported function.

A shared library calls what it imports through a pointer in its own data (the global offset table).
The library's file says where each pointer lies, ``/proc/self/maps`` says where the file was loaded.
64-bit little-endian ELF on Linux only; anything else raises ElfError and changes nothing.
"""

import ctypes
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY_BYTES = 24  # of a symbol and of a relocation
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_STRSZ, _DT_JMPREL = (
    2, 5, 6, 7, 8, 10, 23,
)  # fmt: skip
_SLOT_TYPES = {
    62: (6, 7),  # x86-64: GLOB_DAT, JUMP_SLOT
    183: (1025, 1026),  # aarch64: the same two
}


class ElfError(Exception):
    """The file is not one whose slots are understood, or the library is not loaded."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapped range of a file in this process."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str


def mappings() -> list[Mapping]:
    """Every range of this process that maps a file."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            start, end = (int(bound, 16) for bound in fields[0].split("-"))
            found.append(Mapping(start, end, fields[1], int(fields[2], 16), fields[5]))
    return found


def slot_address(library: Path, symbol: str) -> int:
    """Address, in this process, of the pointer through which ``library`` calls ``symbol``.

    Raises:
        ElfError: ``library`` is not loaded, not understood, or does not import ``symbol``.
    """
    starts = [m.start for m in mappings() if m.path == str(library) and m.offset == 0]
    if not starts:
        raise ElfError(f"{library} is not loaded")
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as image:
            return min(starts) + _Image.read(image).slot(symbol)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ElfError(f"{library} cannot be read: {error}") from error


def read_slot(address: int) -> int:
    """The function a slot points to."""
    return ctypes.c_void_p.from_address(address).value or 0


def write_slot(address: int, target: int) -> None:
    """Point a slot at another function.

    Raises:
        ElfError: the page cannot be made writable, or the old or the new pointer is not to code.
    """
    spans = mappings()
    page = next((m for m in spans if m.start <= address < m.end), None)
    if page is None or address % 8 or not _is_code(spans, target):
        raise ElfError("the slot or its new target is not where it should be")
    if not _is_code(spans, read_slot(address)):
        raise ElfError("the slot does not hold a function")
    start = address - address % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    writable = "w" in page.permissions
    if not writable and _protect(libc, start, mmap.PROT_READ | mmap.PROT_WRITE):
        raise ElfError(f"the slot cannot be made writable (errno {ctypes.get_errno()})")
    ctypes.c_void_p.from_address(address).value = target
    if not writable:
        _protect(libc, start, mmap.PROT_READ)


def _is_code(spans: list[Mapping], address: int) -> bool:
    return any(m.start <= address < m.end and "x" in m.permissions for m in spans)


def _protect(libc: ctypes.CDLL, start: int, protection: int) -> int:
    arguments = (ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(protection))
    return int(libc.mprotect(*arguments))


@dataclass(frozen=True, slots=True)
class _Image:
    """The tables of one shared library, read from its file."""

    content: mmap.mmap
    machine: int
    loads: list[tuple[int, ...]]
    """Segments that are mapped."""
    tags: dict[int, int]
    """The dynamic section."""

    @classmethod
    def read(cls, content: mmap.mmap) -> "_Image":
        header = _HEADER.unpack_from(content, 0)
        if header[0][:6] != b"\x7fELF\x02\x01" or header[2] not in _SLOT_TYPES:
            raise ElfError("not a 64-bit little-endian ELF file of a known machine")
        starts = (header[5] + i * _SEGMENT.size for i in range(header[10]))
        segments = [_SEGMENT.unpack_from(content, start) for start in starts]
        dynamic = next((s for s in segments if s[0] == _PT_DYNAMIC), None)
        if dynamic is None:
            raise ElfError("not a shared library")
        tags = dict(struct.iter_unpack("<qQ", content[dynamic[2] : dynamic[2] + dynamic[5]]))
        return cls(content, header[2], [s for s in segments if s[0] == _PT_LOAD], tags)

    def offset(self, address: int) -> int:
        """Where in the file the byte of that virtual address lies."""
        for _, _, offset, virtual, _, in_file, _, _ in self.loads:
            if virtual <= address < virtual + in_file:
                return address - virtual + offset
        raise ElfError("a table lies outside the file")

    def slot(self, symbol: str) -> int:
        """A slot's address relative to where the file's first byte is mapped."""
        first = next((s[3] for s in self.loads if s[2] == 0), 0)
        for index in self.symbol_indexes(symbol):
            for base, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
                if base not in self.tags:
                    continue
                start = self.offset(self.tags[base])
                for at in self.find(struct.pack("<I", index), start, self.tags[size], within=12):
                    slot, kind = struct.unpack_from("<QI", self.content, at - 12)
                    if kind in _SLOT_TYPES[self.machine]:
                        return int(slot - first)
        raise ElfError(f"{symbol} is not imported")

    def symbol_indexes(self, symbol: str) -> Iterator[int]:
        """Indexes in the symbol table of the symbols of that name."""
        start, size = self.offset(self.tags[_DT_STRTAB]), self.tags[_DT_STRSZ]
        symbols, name = self.offset(self.tags[_DT_SYMTAB]), symbol.encode() + b"\0"
        at = self.content.find(name, start, start + size)
        while at >= 0:
            # The names follow the symbols in every linker's output; if not, nothing is found.
            word = struct.pack("<I", at - start)
            for entry in self.find(word, symbols, start - symbols, within=0):
                yield (entry - symbols) // _ENTRY_BYTES
            at = self.content.find(name, at + 1, start + size)

    def find(self, word: bytes, start: int, size: int, *, within: int) -> Iterator[int]:
        """Offsets of ``word`` at byte ``within`` of a table's entries."""
        at = self.content.find(word, start, start + size)
        while at >= 0:
            if (at - start) % _ENTRY_BYTES == within:
                yield at
            at = self.content.find(word, at + 1, start + size)
