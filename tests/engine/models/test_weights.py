"""Tests of engine/models/weights.py; test_load.py has them at work."""

import mlx.core as mx
import pytest
from mlx import nn

from engine.errors import ModelFileError
from engine.models.weights import (
    Packing,
    bring_in,
    cast,
    find_packings,
    keep_packed,
    main_dtype,
    read_weights,
    unpack,
    verify,
)


def linear(rows: int = 8, columns: int = 128) -> nn.Module:
    model = nn.Module()
    model.proj = nn.Linear(columns, rows, bias=False)
    return model


def packed_weights(bits: int, group_size: int, dtype: mx.Dtype = mx.float32) -> dict[str, mx.array]:
    weight = mx.random.normal((8, 128), key=mx.random.key(1)).astype(dtype)
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    return {"proj.weight": packed, "proj.scales": scales, "proj.biases": biases}


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_the_packing_is_read_off_the_shapes(tmp_path, bits, group_size):
    found = find_packings(linear(), packed_weights(bits, group_size), tmp_path)
    assert found == {"proj": Packing(bits, group_size, "affine")}


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_an_unpacked_weight_is_what_mlx_unpacks_with_float32_scales(tmp_path, bits):
    weights = packed_weights(bits, 32, mx.bfloat16)
    expected = mx.dequantize(
        weights["proj.weight"],
        weights["proj.scales"].astype(mx.float32),
        weights["proj.biases"].astype(mx.float32),
        group_size=32,
        bits=bits,
    )
    unpack(weights, find_packings(linear(), weights, tmp_path), mx.float32)
    assert list(weights) == ["proj.weight"]
    assert weights["proj.weight"].dtype == mx.float32
    assert mx.array_equal(weights["proj.weight"], expected)


def test_packed_modules_replace_dense_ones_where_weights_are_packed(tmp_path):
    model, weights = linear(), packed_weights(4, 32)
    keep_packed(model, find_packings(model, weights, tmp_path))
    assert isinstance(model.proj, nn.QuantizedLinear)
    verify(model, weights, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"proj.weight": mx.zeros((8, 16), dtype=mx.int32)}, id="not uint32"),
        pytest.param({"proj.weight": mx.zeros((9, 16), dtype=mx.uint32)}, id="too many rows"),
        pytest.param({"proj.weight": mx.zeros((8, 17), dtype=mx.uint32)}, id="no whole bits"),
        pytest.param({"proj.scales": mx.zeros((8, 3))}, id="no whole groups"),
        pytest.param({"proj.scales": mx.zeros((8, 128))}, id="groups of one"),
        pytest.param({"proj.scales": mx.zeros((8, 2), dtype=mx.uint8)}, id="no such mode"),
        pytest.param({"proj.biases": mx.zeros((8, 5))}, id="biases that do not fit"),
    ],
)
def test_a_packing_that_does_not_fit_names_its_tensor(tmp_path, change):
    with pytest.raises(ModelFileError, match=r"'proj\.(weight|biases)'"):
        find_packings(linear(), packed_weights(4, 32) | change, tmp_path)


@pytest.mark.parametrize("missing", ["proj.weight", "proj.biases"])
def test_a_part_of_a_packing_that_is_missing_is_named(tmp_path, missing):
    weights = packed_weights(4, 32)
    del weights[missing]
    with pytest.raises(ModelFileError, match=missing):
        find_packings(linear(), weights, tmp_path)


def test_many_missing_tensors_are_named_in_part_and_counted(tmp_path):
    model = nn.Module()
    model.layers = [nn.Linear(4, 4, bias=False) for _ in range(5)]
    with pytest.raises(ModelFileError, match=r"'layers\.0\.weight'.* and 2 more are missing"):
        verify(model, {}, tmp_path)


def test_casting_leaves_integers_and_what_a_family_wants_wide(tmp_path):
    weights = {
        "a": mx.zeros(2),
        "gate": mx.zeros(2),
        "ids": mx.zeros(2, dtype=mx.int32),
    }
    cast(weights, mx.bfloat16, lambda name: name != "gate")
    assert [weights[name].dtype for name in ("a", "gate", "ids")] == [
        mx.bfloat16,
        mx.float32,
        mx.int32,
    ]


def test_widening_asks_nobody():
    weights = {"gate": mx.zeros(2, dtype=mx.bfloat16)}
    cast(weights, mx.float32, lambda _: False)
    assert weights["gate"].dtype == mx.float32


def test_weights_come_in_largest_first_so_that_unpacking_never_tops_the_peak(tmp_path):
    seen: list[float] = []
    weights = {"small.weight": mx.ones((4, 4)), "large.weight": mx.ones((4, 96))}
    bring_in(weights, tmp_path, seen.append)
    assert seen == [pytest.approx(0.96), pytest.approx(1.0)]


def test_the_main_dtype_is_that_of_most_elements_and_packed_ones_do_not_count():
    arrays = [mx.zeros(9, dtype=mx.uint32), mx.zeros(3, dtype=mx.float16), mx.zeros(2)]
    assert main_dtype(arrays) == mx.float16


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for name in ("model-1.safetensors", "model-2.safetensors"):
        mx.save_safetensors(str(tmp_path / name), {"t": mx.zeros(2)})
    with pytest.raises(ModelFileError, match=r"'t' is also in another shard"):
        read_weights(tmp_path)
