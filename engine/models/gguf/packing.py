"""Turns the blocks of a GGUF tensor into the arrays that mlx-lm's folder stores.

Formats that MLX's affine quantization expresses keep their codes (``uint32`` words) with float32
scales and biases, exactly; plain floats are copied; what is left becomes float16, whose rounding is
far below the error such formats already carry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelFileError
from engine.models.gguf.architecture import Architecture
from engine.models.gguf.blocks import GROUP, BlockFormat, Bytes, Floats
from engine.models.gguf.reader import TensorInfo
from engine.models.gguf.tensors import Placement, RowChange, change_rows

CHUNK_VALUES = 1 << 21
"""Values decoded at once: 8 MiB of float32, little next to one packed tensor."""


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of the folder, declared before its data is made."""

    name: str
    dtype: str
    """In safetensors' spelling: U32, F32, F16, BF16."""

    shape: tuple[int, ...]

    @property
    def byte_count(self) -> int:
        """Bytes of the array's data."""
        count = _DTYPE_BYTES[self.dtype]
        for length in self.shape:
            count *= length
        return count


_DTYPE_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


def kept_bits(tensor: TensorInfo) -> int | None:
    """The bits per value of a tensor that stays quantized; None for the others."""
    return tensor.format.bits if len(tensor.shape) == 2 else None


def is_rounded(tensor: TensorInfo) -> bool:
    """Whether a packed tensor has to be stored as float16."""
    return len(tensor.shape) == 2 and not tensor.format.is_float and tensor.format.bits is None


def stored_arrays(tensor: TensorInfo, place: Placement) -> list[StoredArray]:
    """The arrays that ``tensor`` becomes, in the order ``array_data`` gives their data."""
    bits = kept_bits(tensor)
    if bits is not None:
        rows, columns = tensor.shape
        module = place.target.removesuffix(".weight")
        groups = (rows, columns // GROUP)
        return [
            StoredArray(place.target, "U32", (rows, columns * bits // 32)),
            StoredArray(f"{module}.scales", "F32", groups),
            StoredArray(f"{module}.biases", "F32", groups),
        ]
    return [StoredArray(place.target, _plain_dtype(tensor, place.change), tensor.shape)]


def array_data(
    path: Path, tensor: TensorInfo, rows: Bytes, place: Placement, architecture: Architecture
) -> Iterator[bytes]:
    """The data of ``stored_arrays(tensor, place)``, one after the other, in pieces.

    Args:
        path: the file, for messages.
        tensor: what ``rows`` holds.
        rows: uint8[rows, row_bytes], as read.
        place: where the tensor goes and what is undone on the way.
        architecture: the model's sizes.
    """
    if len(tensor.shape) == 1:
        values = decode_vector(tensor.format, rows)
        if place.change is RowChange.MINUS_ONE:
            values = (values.astype(np.float64) - 1).astype(np.float32)
        changed = change_rows(values, place.change, architecture)
        yield _as_dtype(changed.astype(np.float32), _plain_dtype(tensor, place.change)).tobytes()
        return
    changed_rows: Bytes = change_rows(rows, place.change, architecture).view(np.uint8)
    if tensor.format.is_float:
        yield changed_rows.tobytes()
    elif tensor.format.bits is not None:
        yield from _codes_scales_biases(path, tensor, tensor.format.bits, changed_rows)
    else:
        yield from _halves(path, tensor, changed_rows)


def pack_codes(codes: Bytes, bits: int) -> Bytes:
    """uint8[rows, values * bits / 8]: codes as one little-endian bit stream, MLX's layout."""
    if bits == 8:
        return codes
    if bits == 4:
        return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    stream = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(len(codes), -1), axis=-1, bitorder="little")


def _plain_dtype(tensor: TensorInfo, change: RowChange) -> str:
    if tensor.format.is_float and change is not RowChange.MINUS_ONE:
        return tensor.format.name
    return "F32" if len(tensor.shape) == 1 else "F16"


def _as_dtype(values: Floats, dtype: str) -> NDArray[np.generic]:
    """Values that came from ``dtype``, in it again."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "F16" else np.float32)


def decode_vector(form: BlockFormat, rows: Bytes) -> Floats:
    """float32[n]: the values of a tensor of one dimension."""
    flat = rows.reshape(-1)
    match form.name:
        case "F32":
            return flat.view("<f4").astype(np.float32)
        case "F16":
            return flat.view("<f2").astype(np.float32)
        case "BF16":
            return (flat.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case _:
            return form.dequantized(flat.reshape(-1, form.block_bytes)).reshape(-1)


def _chunks(form: BlockFormat, rows: Bytes) -> Iterator[Bytes]:
    """``rows`` in runs of about ``CHUNK_VALUES`` values."""
    row_values = rows.shape[1] // form.block_bytes * form.values
    step = max(1, CHUNK_VALUES // row_values)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _codes_scales_biases(path: Path, tensor: TensorInfo, bits: int, rows: Bytes) -> Iterator[bytes]:
    scales, biases = [], []
    form = tensor.format
    for chunk in _chunks(form, rows):
        coded = form.quantized(chunk.reshape(-1, form.block_bytes))
        if not (np.isfinite(coded.scales).all() and np.isfinite(coded.biases).all()):
            raise ModelFileError(path, f"tensor {tensor.name!r} has scales that are not finite")
        yield pack_codes(coded.codes.reshape(len(chunk), -1), bits).tobytes()
        scales.append(coded.scales.astype("<f4").tobytes())
        biases.append(coded.biases.astype("<f4").tobytes())
    yield from scales
    yield from biases


def _halves(path: Path, tensor: TensorInfo, rows: Bytes) -> Iterator[bytes]:
    form = tensor.format
    for chunk in _chunks(form, rows):
        values = form.dequantized(chunk.reshape(-1, form.block_bytes))
        if not np.all(np.abs(values) <= np.finfo(np.float16).max):
            raise ModelFileError(
                path, f"tensor {tensor.name!r} holds values that are not finite in float16"
            )
        yield values.astype("<f2").tobytes()
