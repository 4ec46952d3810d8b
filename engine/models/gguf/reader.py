"""The GGUF file format: what a file's header declares, checked before it is believed.

Every count and length is compared with the bytes that are really there before anything is
allocated, so that a hostile or truncated file costs an error and not memory. Tensors are read one
at a time with plain reads: a file that shrinks under its reader is an error, not a SIGBUS.

Source: the GGUF specification, ggml-org/ggml, docs/gguf.md (versions 2 and 3).
"""

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.blocks import BlockFormat, block_format, format_name
from engine.models.gguf.metadata import GgufMetadata, Value

MAX_ARRAY_ITEMS = 1 << 23
"""Far above any vocabulary (262,144 tokens) or merge list (about 500,000)."""

MAX_NAME_BYTES = 65_535
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in its file, checked to lie inside it."""

    name: str
    shape: tuple[int, ...]
    """Outermost axis first; the last axis is a row."""

    format: BlockFormat
    start: int
    """Byte offset from the beginning of the file."""

    byte_count: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[-1] // self.format.values * self.format.block_bytes


class GGUFFile:
    """An open GGUF file; ``open_gguf`` makes and closes it."""

    def __init__(
        self, path: Path, file: BinaryIO, metadata: GgufMetadata, tensors: dict[str, TensorInfo]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        """By name, in file order."""
        self._file = file

    def read_rows(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """uint8[rows, row_bytes]: the bytes of ``tensor``."""
        try:
            self._file.seek(tensor.start)
            data = self._file.read(tensor.byte_count)
        except OSError as error:
            raise ModelFileError(
                self.path, f"tensor {tensor.name!r} cannot be read: {error.strerror}"
            ) from error
        if len(data) != tensor.byte_count:
            raise ModelFileError(self.path, f"the file ends inside tensor {tensor.name!r}")
        return np.frombuffer(data, np.uint8).reshape(-1, tensor.row_bytes)


@contextmanager
def open_gguf(path: Path) -> Iterator[GGUFFile]:
    """The file at ``path``, its header read and checked.

    Raises:
        ModelFileError: the file cannot be read, is truncated or contradicts itself.
        UnsupportedModel: a GGUF of a version, byte order, number format or split not read here.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelFileError(path, f"cannot be opened: {error.strerror}") from error
    with file:
        header = _Header(path, file)
        try:
            metadata, tensors = header.parse()
        except OSError as error:
            raise ModelFileError(path, f"cannot be read: {error.strerror}") from error
        yield GGUFFile(path, file, metadata, tensors)


_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""GGUF's numeric value types as NumPy's."""

_STRING = 8
_ARRAY = 9


class _Header:
    """Reads the header front to back; every read is checked against the end of the file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.byte_count = os.fstat(file.fileno()).st_size
        self.position = 0
        self.where = "the header"
        """What is being read, for messages."""

    def parse(self) -> tuple[GgufMetadata, dict[str, TensorInfo]]:
        self.check_magic()
        # A tensor's entry takes at least 32 bytes, a key's at least 13.
        tensor_count = self.count(self.integer("<Q"), 32, "tensors")
        key_count = self.count(self.integer("<Q"), 13, "metadata keys")
        metadata = GgufMetadata(self.path, dict(self.keys(key_count)))
        self.check_split(metadata)
        entries = [self.tensor_entry() for _ in range(tensor_count)]
        start = _round_up(self.position, self.alignment(metadata))
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_id, offset in entries:
            if name in tensors:
                raise self.wrong(f"tensor {name!r} is there twice")
            tensors[name] = self.placed(name, shape, type_id, start + offset)
        self.check_overlaps(tensors)
        return metadata, tensors

    def check_overlaps(self, tensors: Mapping[str, TensorInfo]) -> None:
        """Bytes that many tensors share would be written once for each of them."""
        in_order = sorted(tensors.values(), key=lambda tensor: tensor.start)
        for before, after in pairwise(in_order):
            if after.start < before.start + before.byte_count:
                raise self.wrong(f"tensors {before.name!r} and {after.name!r} overlap")

    def check_magic(self) -> None:
        magic = self.take(min(4, self.byte_count))
        if magic != b"GGUF":
            raise self.wrong("not a GGUF file (it does not begin with 'GGUF')")
        version = self.integer("<I")
        if version in (2, 3):
            return
        if version & 0xFFFF == 0:
            raise UnsupportedModel(
                f"{self.path}: a big-endian GGUF; convert it to little-endian first"
            )
        raise UnsupportedModel(
            f"{self.path}: GGUF version {version} is not read here; versions 2 and 3 are"
        )

    def check_split(self, metadata: GgufMetadata) -> None:
        parts = metadata.integer("split.count", 0)
        if parts > 1 or re.search(r"-\d{5}-of-\d{5}\.gguf$", self.path.name):
            raise UnsupportedModel(
                f"{self.path}: one part of a split model; join the parts first, "
                "for example with `llama-gguf-split --merge`"
            )

    def alignment(self, metadata: GgufMetadata) -> int:
        alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
        if alignment == 0 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self.wrong(f"metadata key 'general.alignment' is {alignment}, no power of two")
        return alignment

    def keys(self, key_count: int) -> Iterator[tuple[str, Value]]:
        seen: set[str] = set()
        for index in range(key_count):
            self.where = f"metadata key number {index + 1} of {key_count}"
            key = self.string(MAX_NAME_BYTES)
            self.where = f"metadata key {key!r}"
            if key in seen:
                raise self.wrong(f"{self.where} is there twice")
            seen.add(key)
            yield key, self.value(self.integer("<I"))

    def value(self, type_id: int) -> Value:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            return self.array(self.integer("<I"), self.integer("<Q"))
        numbers = self.numbers(type_id, 1)
        scalar: bool | int | float = numbers[0].item()
        return scalar

    def array(self, type_id: int, item_count: int) -> Value:
        if item_count > MAX_ARRAY_ITEMS:
            raise self.wrong(f"{self.where} declares an array of {item_count} items")
        if type_id == _ARRAY:
            raise UnsupportedModel(f"{self.path}: {self.where} is an array of arrays")
        if type_id == _STRING:
            self.count(item_count, 8, f"strings in {self.where}")
            return tuple([self.string() for _ in range(item_count)])
        return self.numbers(type_id, item_count)

    def numbers(self, type_id: int, item_count: int) -> NDArray[np.generic]:
        if type_id not in _SCALARS:
            raise self.wrong(f"{self.where} has the unknown value type {type_id}")
        kind = np.dtype(_SCALARS[type_id])
        data = self.take(item_count * kind.itemsize)
        if type_id == 7 and data.strip(b"\0\1"):
            raise self.wrong(f"{self.where} holds a boolean that is neither 0 nor 1")
        return np.frombuffer(data, kind)

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        self.where = "the list of tensors"
        name = self.string(MAX_NAME_BYTES)
        self.where = f"the entry of tensor {name!r}"
        dimensions = self.integer("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.wrong(f"tensor {name!r} has {dimensions} dimensions")
        # GGUF writes the innermost axis first.
        shape = tuple(self.integer("<Q") for _ in range(dimensions))[::-1]
        return name, shape, self.integer("<I"), self.integer("<Q")

    def placed(self, name: str, shape: tuple[int, ...], type_id: int, start: int) -> TensorInfo:
        form = block_format(type_id)
        if form is None:
            raise UnsupportedModel(
                f"{self.path}: tensor {name!r} has the number format {format_name(type_id)}, "
                "which is not read here"
            )
        values = 1
        for length in shape:
            values *= length
        if values == 0 or shape[-1] % form.values:
            raise self.wrong(
                f"tensor {name!r} has the shape {list(shape)}, impossible in the format {form.name}"
            )
        byte_count = values // form.values * form.block_bytes
        if start + byte_count > self.byte_count:
            raise self.wrong(
                f"tensor {name!r} ends at byte {start + byte_count}, but the file has "
                f"{self.byte_count} (is it truncated?)"
            )
        return TensorInfo(name, shape, form, start, byte_count)

    def count(self, declared: int, least_bytes: int, what: str) -> int:
        """``declared``, if the rest of the file can hold that many."""
        if declared * least_bytes > self.byte_count - self.position:
            raise self.wrong(f"declares {declared} {what}, more than the file can hold")
        return declared

    def integer(self, layout: str) -> int:
        number: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return number

    def string(self, most_bytes: int | None = None) -> str:
        length = self.integer("<Q")
        if most_bytes is not None and length > most_bytes:
            raise self.wrong(f"{self.where} has a name of {length} bytes")
        data = self.take(length)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.wrong(f"{self.where} is not valid UTF-8") from error

    def take(self, byte_count: int) -> bytes:
        if byte_count > self.byte_count - self.position:
            raise self.wrong(f"the file ends inside {self.where} (is it truncated?)")
        data = self.file.read(byte_count)
        self.position += byte_count
        if len(data) != byte_count:
            raise self.wrong(f"the file ends inside {self.where}")
        return data

    def wrong(self, problem: str) -> ModelFileError:
        return ModelFileError(self.path, problem)


def _round_up(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
