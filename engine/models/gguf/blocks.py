"""The number formats of GGUF tensors: their blocks, and how a block becomes numbers.

A row is a run of blocks; a block is a fixed count of values in a fixed count of bytes. Formats
that MLX's affine quantization can express (``weight = scale * code + bias`` over 32 values) give
codes, scales and biases, which loses nothing; every format gives float32 values.

Source: ggml-org/ggml, ggml-common.h (block structs) and ggml-quants.c (``dequantize_row_*``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

GROUP = 32
"""Values that share a scale in every format kept quantized; a group size MLX knows."""


@dataclass(frozen=True, slots=True)
class AffineCodes:
    """Quantized values: ``codes[i] * scale + bias`` over groups of 32."""

    codes: Bytes
    """uint8[blocks, values]: one code each, below ``2 ** bits``."""

    scales: Floats
    """float32[blocks, values / 32]."""

    biases: Floats
    """float32[blocks, values / 32]."""

    def values(self) -> Floats:
        """float32[blocks, values]."""
        blocks, groups = self.scales.shape
        codes = self.codes.reshape(blocks, groups, -1).astype(np.float32)
        values: Floats = codes * self.scales[..., None] + self.biases[..., None]
        return values.reshape(blocks, -1)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One number format; its name is GGUF's."""

    name: str
    values: int
    """Values in a block."""

    block_bytes: int
    bits: int | None = None
    """Width of the affine codes MLX can hold; None for a format it cannot express."""

    affine: Callable[[Bytes], AffineCodes] | None = None
    """uint8[blocks, block_bytes] to codes, where ``bits`` is set."""

    floats: Callable[[Bytes], Floats] | None = None
    """uint8[blocks, block_bytes] to float32[blocks, values], for the other packed formats."""

    @property
    def is_float(self) -> bool:
        """Whether the format is plain floats, which are copied as they are."""
        return self.values == 1

    def quantized(self, blocks: Bytes) -> AffineCodes:
        """The codes, scales and biases of uint8[blocks, block_bytes]; where ``bits`` is set.

        A broken file gives scales that are not finite, for the caller to refuse.
        """
        assert self.affine is not None
        with np.errstate(all="ignore"):
            return self.affine(blocks)

    def dequantized(self, blocks: Bytes) -> Floats:
        """float32[blocks, values] of uint8[blocks, block_bytes]; packed formats only."""
        with np.errstate(all="ignore"):
            if self.affine is not None:
                return self.affine(blocks).values()
            assert self.floats is not None
            return self.floats(blocks)


def _half(blocks: Bytes, start: int) -> Floats:
    """float32[blocks, 1]: the float16 at byte ``start`` of every block."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _field(packed: Bytes, shift: int | list[int], width: int) -> Bytes:
    """``width`` bits of every byte, from bit ``shift`` up; several shifts make a new last axis."""
    if isinstance(shift, list):
        packed = packed[..., None]
    return packed >> np.array(shift, np.uint8) & np.uint8((1 << width) - 1)


def _above(low: Bytes, high: Bytes, width: int = 4) -> Bytes:
    """Codes whose lowest ``width`` bits are ``low`` and whose others are ``high``."""
    return low | high << np.uint8(width)


def _nibbles(packed: Bytes) -> Bytes:
    """uint8[..., 2 n]: the low halves of n bytes, then their high halves."""
    return np.concatenate([_field(packed, 0, 4), _field(packed, 4, 4)], axis=-1)


def _planes(packed: Bytes, width: int) -> Bytes:
    """uint8[blocks, 256]: codes of ``width`` bits, spread over runs of 32 bytes.

    Byte n of a run holds the run's code ``32 * k + n`` at bit ``k * width``.
    """
    shifts = list(range(0, 8, width))
    runs = _field(packed.reshape(len(packed), -1, 32), shifts, width)
    return runs.swapaxes(-1, -2).reshape(len(packed), 256)


def _fifth_bits(packed: Bytes) -> Bytes:
    """uint8[blocks, 32]: the bits of four bytes, lowest first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _grouped(codes: Floats, scales: Floats) -> Floats:
    """float32[blocks, 256]: each code times the scale of its run of codes."""
    blocks, groups = scales.shape
    values: Floats = codes.reshape(blocks, groups, -1) * scales[..., None]
    return values.reshape(blocks, -1)


def _q4_0(blocks: Bytes) -> AffineCodes:
    scales = _half(blocks, 0)
    return AffineCodes(_nibbles(blocks[:, 2:]), scales, -8 * scales)


def _q4_1(blocks: Bytes) -> AffineCodes:
    return AffineCodes(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> AffineCodes:
    codes = _above(_nibbles(blocks[:, 6:]), _fifth_bits(blocks[:, 2:6]))
    scales = _half(blocks, 0)
    return AffineCodes(codes, scales, -16 * scales)


def _q5_1(blocks: Bytes) -> AffineCodes:
    codes = _above(_nibbles(blocks[:, 8:]), _fifth_bits(blocks[:, 4:8]))
    return AffineCodes(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> AffineCodes:
    scales = _half(blocks, 0)
    # Flipping the sign bit of a two's complement byte adds 128 to its value.
    return AffineCodes(blocks[:, 2:] ^ np.uint8(0x80), scales, -128 * scales)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and biases of the 32-value groups of Q4_K and Q5_K: float32[blocks, 8] each.

    Eight scales and eight minima of six bits share 12 bytes.
    """
    first, second, mixed = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    late_scales = _above(_field(mixed, 0, 4), _field(first, 6, 2))
    late_minima = _above(_field(mixed, 4, 4), _field(second, 6, 2))
    scales = np.concatenate([_field(first, 0, 6), late_scales], axis=-1)
    minima = np.concatenate([_field(second, 0, 6), late_minima], axis=-1)
    return _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _q4_k(blocks: Bytes) -> AffineCodes:
    return AffineCodes(_planes(blocks[:, 16:], 4), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> AffineCodes:
    codes = _above(_planes(blocks[:, 48:], 4), _planes(blocks[:, 16:48], 1))
    return AffineCodes(codes, *_k_scales(blocks))


def _q2_k(blocks: Bytes) -> Floats:
    scales = _half(blocks, 80) * _field(blocks[:, :16], 0, 4)
    minima = _half(blocks, 82) * _field(blocks[:, :16], 4, 4)
    values = _grouped(_planes(blocks[:, 16:80], 2).astype(np.float32), scales)
    return values - np.repeat(minima, 16, axis=-1)


def _q3_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 96:104])
    high = _field(blocks[:, 104:108], [0, 2, 4, 6], 2).swapaxes(-1, -2).reshape(len(blocks), 16)
    scales = _half(blocks, 108) * (_above(low, high).astype(np.float32) - 32)
    # The third bit is stored inverted: a set bit means that nothing is subtracted.
    codes = _above(_planes(blocks[:, 32:96], 2), _planes(blocks[:, :32], 1), 2)
    return _grouped(codes.astype(np.float32) - 4, scales)


def _q6_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    codes = _above(low, _planes(blocks[:, 128:192], 2))
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _grouped(codes.astype(np.float32) - 32, _half(blocks, 208) * scales)


def _iq4_levels(codes: Bytes) -> Floats:
    """The sixteen levels of the IQ4 formats."""
    levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    return np.array(levels, np.float32)[codes]


def _iq4_nl(blocks: Bytes) -> Floats:
    return _grouped(_iq4_levels(_nibbles(blocks[:, 2:])), _half(blocks, 0))


def _iq4_xs(blocks: Bytes) -> Floats:
    low = _field(blocks[:, 4:8], [0, 4], 4).reshape(-1, 8)
    high = _field(blocks[:, 2:4], [0, 2, 4, 6], 2).reshape(-1, 8)
    scales = _half(blocks, 0) * (_above(low, high).astype(np.float32) - 32)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)
    return _grouped(_iq4_levels(codes), scales)


def block_format(type_id: int) -> BlockFormat | None:
    """The format GGUF numbers ``type_id``; None where it cannot be read here."""
    return _FORMATS.get(type_id)


def format_name(type_id: int) -> str:
    """GGUF's name of a number format, for messages."""
    known = _FORMATS.get(type_id)
    return known.name if known else _UNREAD.get(type_id, f"number {type_id}")


_FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2),
    2: BlockFormat("Q4_0", 32, 18, 4, _q4_0),
    3: BlockFormat("Q4_1", 32, 20, 4, _q4_1),
    6: BlockFormat("Q5_0", 32, 22, 5, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, 5, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, 8, _q8_0),
    10: BlockFormat("Q2_K", 256, 84, floats=_q2_k),
    11: BlockFormat("Q3_K", 256, 110, floats=_q3_k),
    12: BlockFormat("Q4_K", 256, 144, 4, _q4_k),
    13: BlockFormat("Q5_K", 256, 176, 5, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, floats=_q6_k),
    20: BlockFormat("IQ4_NL", 32, 18, floats=_iq4_nl),
    23: BlockFormat("IQ4_XS", 256, 136, floats=_iq4_xs),
    30: BlockFormat("BF16", 1, 2),
}

_UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Formats that exist and are not read here."""
