import tracemalloc
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.models.gguf.architecture import Architecture
from engine.models.gguf.blocks import block_format
from engine.models.gguf.packing import array_data, pack_codes, stored_arrays
from engine.models.gguf.reader import TensorInfo
from engine.models.gguf.tensors import Placement, RowChange

ARCHITECTURE = Architecture(
    family="llama",
    hidden_size=32,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=4,
    intermediate_size=32,
    vocab_size=8,
    is_tied=True,
)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@given(data=st.data())
def test_packed_codes_are_what_mlx_unpacks(bits, data):
    codes = np.array(
        data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=64, max_size=64)), np.uint8
    ).reshape(2, 32)
    words = np.ascontiguousarray(pack_codes(codes, bits)).view(np.uint32)
    ones = mx.ones((2, 1))
    unpacked = mx.dequantize(mx.array(words), ones, 0 * ones, group_size=32, bits=bits)
    assert np.array_equal(np.array(unpacked), codes)


def packed(name: str, rows: int, columns: int) -> TensorInfo:
    form = next(f for number in range(64) if (f := block_format(number)) and f.name == name)
    row_bytes = columns // form.values * form.block_bytes
    shape = (rows, columns) if rows else (columns,)
    return TensorInfo("w", shape, form, 0, max(rows, 1) * row_bytes)


def data_of(tensor: TensorInfo, place: Placement, rows=None) -> bytes:
    if rows is None:
        rows = np.zeros((tensor.byte_count // tensor.row_bytes, tensor.row_bytes), np.uint8)
    return b"".join(array_data(Path("m.gguf"), tensor, rows, place, ARCHITECTURE))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("rows", [0, 8])
def test_the_data_is_as_long_as_the_declared_arrays(name, rows):
    tensor = packed(name, rows, 256)
    place = Placement("w", "proj.weight", tensor.shape)
    declared = sum(array.byte_count for array in stored_arrays(tensor, place))
    assert len(data_of(tensor, place)) == declared


def test_a_long_tensor_comes_in_pieces_that_join_to_the_whole(monkeypatch):
    tensor = packed("Q6_K", 8, 256)
    place = Placement("w", "proj.weight", tensor.shape)
    rows = np.random.default_rng(0).integers(0, 64, (8, 210), np.uint8)
    whole = data_of(tensor, place, rows)
    monkeypatch.setattr("engine.models.gguf.packing.CHUNK_VALUES", 3 * 256)
    pieces = list(array_data(Path("m.gguf"), tensor, rows, place, ARCHITECTURE))
    assert len(pieces) == 3
    assert b"".join(pieces) == whole


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_one_is_taken_from_a_norm_of_any_float_format(name):
    tensor = packed(name, 0, 4)
    ones = {"F32": b"\0\0\x80\x3f", "F16": b"\0\x3c", "BF16": b"\x80\x3f"}[name]
    rows = np.frombuffer(ones * 4, np.uint8).reshape(1, -1)
    place = Placement("w", "norm.weight", (4,), RowChange.MINUS_ONE)
    assert stored_arrays(tensor, place)[0].dtype == "F32"
    assert data_of(tensor, place, rows) == bytes(16)


def test_a_bias_is_brought_into_order_like_its_rows():
    values = np.arange(8, dtype="<f4")
    place = Placement("b", "q_proj.bias", (8,), RowChange.UNPERMUTE_QUERY)
    rows = values.view(np.uint8).reshape(1, -1)
    changed = np.frombuffer(data_of(packed("F32", 0, 8), place, rows), "<f4")
    assert changed.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_values_beyond_float16_are_an_error_that_names_the_tensor():
    rows = np.full((1, 210), 0x7B, np.uint8)
    tensor = packed("Q6_K", 1, 256)
    with pytest.raises(ModelFileError, match="'w' holds values"):
        data_of(tensor, Placement("w", "proj.weight", (1, 256)), rows)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_memory_holds_pieces_and_never_the_whole_decoded_tensor(monkeypatch, name):
    monkeypatch.setattr("engine.models.gguf.packing.CHUNK_VALUES", 1 << 14)
    tensor = packed(name, 2048, 512)
    rows = np.zeros((2048, tensor.row_bytes), np.uint8)
    place = Placement("w", "proj.weight", tensor.shape)
    tracemalloc.start()
    for _ in array_data(Path("m.gguf"), tensor, rows, place, ARCHITECTURE):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2048 * 512  # a quarter of it in float32
