import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.gguf.blocks import block_format, format_name

# The reference: each format decoded one value at a time, from the layout of its C struct.


def half(block: bytes, start: int) -> float:
    return struct.unpack_from("<e", block, start)[0]


def q4_0(block, i):
    byte = block[2 + i % 16]
    return half(block, 0) * ((byte >> 4 if i >= 16 else byte & 15) - 8)


def q4_1(block, i):
    byte = block[4 + i % 16]
    return half(block, 0) * (byte >> 4 if i >= 16 else byte & 15) + half(block, 2)


def q5_0(block, i):
    byte, fifth = block[6 + i % 16], struct.unpack_from("<I", block, 2)[0] >> i & 1
    return half(block, 0) * ((byte >> 4 if i >= 16 else byte & 15) + 16 * fifth - 16)


def q5_1(block, i):
    byte, fifth = block[8 + i % 16], struct.unpack_from("<I", block, 4)[0] >> i & 1
    return half(block, 0) * ((byte >> 4 if i >= 16 else byte & 15) + 16 * fifth) + half(block, 2)


def q8_0(block, i):
    return half(block, 0) * struct.unpack_from("<b", block, 2 + i)[0]


def q2_k(block, i):
    scale = block[i // 16]
    code = block[16 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
    return half(block, 80) * (scale & 15) * code - half(block, 82) * (scale >> 4)


def q3_k(block, i):
    group = i // 16
    low = block[96 + group % 8] >> (4 if group >= 8 else 0) & 15
    high = block[104 + group % 4] >> (group // 4 * 2) & 3
    code = block[32 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
    minus = 0 if block[i % 32] >> (i // 32) & 1 else 4
    return half(block, 108) * ((low | high << 4) - 32) * (code - minus)


def k_scale(block, group):
    packed = block[4:16]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def q4_k(block, i):
    scale, minimum = k_scale(block, i // 32)
    code = block[16 + i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15
    return half(block, 0) * scale * code - half(block, 2) * minimum


def q5_k(block, i):
    scale, minimum = k_scale(block, i // 32)
    code = block[48 + i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15
    code += 16 * (block[16 + i % 32] >> (i // 32) & 1)
    return half(block, 0) * scale * code - half(block, 2) * minimum


def q6_k(block, i):
    part, at = i // 128, i % 128
    low = block[part * 64 + at % 64] >> (4 if at >= 64 else 0) & 15
    high = block[128 + part * 32 + at % 32] >> (at // 32 * 2) & 3
    scale = struct.unpack_from("<b", block, 192 + i // 16)[0]
    return half(block, 208) * scale * ((low | high << 4) - 32)


LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_nl(block, i):
    byte = block[2 + i % 16]
    return half(block, 0) * LEVELS[byte >> 4 if i >= 16 else byte & 15]


def iq4_xs(block, i):
    group, at = i // 32, i % 32
    low = block[4 + group // 2] >> (group % 2 * 4) & 15
    high = struct.unpack_from("<H", block, 2)[0] >> (group * 2) & 3
    byte = block[8 + group * 16 + at % 16]
    level = LEVELS[byte >> 4 if at >= 16 else byte & 15]
    return half(block, 0) * ((low | high << 4) - 32) * level


REFERENCES = {
    2: q4_0,
    3: q4_1,
    6: q5_0,
    7: q5_1,
    8: q8_0,
    10: q2_k,
    11: q3_k,
    12: q4_k,
    13: q5_k,
    14: q6_k,
    20: iq4_nl,
    23: iq4_xs,
}
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2)}
HALVES |= {"Q5_K": (0, 2), "Q6_K": (208,)}


def test_every_packed_format_has_a_reference():
    packed = [
        number for number in range(64) if (form := block_format(number)) and not form.is_float
    ]
    assert packed == list(REFERENCES)


@pytest.mark.parametrize("type_id", REFERENCES, ids=format_name)
@given(data=st.data())
def test_a_block_means_what_its_layout_says(type_id, data):
    form = block_format(type_id)
    size = 2 * form.block_bytes
    raw = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    for start in HALVES.get(form.name, (0,)):
        for block in (0, form.block_bytes):
            scale = data.draw(st.floats(-8, 8, width=16))
            struct.pack_into("<e", raw, block + start, scale)
    blocks = np.frombuffer(bytes(raw), np.uint8).reshape(2, -1)
    expected = [
        [REFERENCES[type_id](block.tobytes(), i) for i in range(form.values)] for block in blocks
    ]
    values = form.dequantized(blocks)
    assert values.dtype == np.float32
    # float32 holds every product exactly and rounds one sum.
    assert np.allclose(values, expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    "type_id", [number for number in REFERENCES if block_format(number).bits], ids=format_name
)
@given(data=st.data())
def test_kept_codes_fit_their_bits(type_id, data):
    form = block_format(type_id)
    raw = data.draw(st.binary(min_size=form.block_bytes, max_size=form.block_bytes))
    coded = form.quantized(np.frombuffer(raw, np.uint8).reshape(1, -1))
    assert coded.codes.dtype == np.uint8
    assert coded.codes.shape == (1, form.values)
    assert coded.codes.max() < 1 << form.bits
    assert coded.scales.shape == coded.biases.shape == (1, form.values // 32)
    assert coded.scales.dtype == coded.biases.dtype == np.float32


def test_formats_not_read_here_still_have_a_name():
    assert block_format(16) is None
    assert format_name(16) == "IQ2_XXS"
    assert format_name(999) == "number 999"
