from pathlib import Path

import numpy as np
import pytest

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.architecture import Architecture
from engine.models.gguf.blocks import block_format
from engine.models.gguf.reader import TensorInfo
from engine.models.gguf.tensors import RowChange, change_rows, place_tensors
from tests.engine.models.gguf.write_gguf import Sizes, family_weights, gguf_tensors


def architecture(family: str, **changes) -> Architecture:
    sizes = Sizes()
    values = {
        "family": family,
        "hidden_size": sizes.hidden,
        "layers": sizes.layers,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.inner,
        "vocab_size": sizes.vocabulary,
        "is_tied": True,
    }
    return Architecture(**values | changes)


def tensors_of(family: str, **changes: tuple[int, ...]) -> dict[str, TensorInfo]:
    shapes = {
        name: array.shape
        for name, array in gguf_tensors(family, Sizes(), family_weights(family, Sizes())).items()
    }
    return {
        name: TensorInfo(name, shape, block_format(0), 0, 0)
        for name, shape in (shapes | changes).items()
    }


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_every_tensor_finds_its_name(family):
    placed = place_tensors(architecture(family), tensors_of(family), Path("m.gguf"))
    assert {place.target for _, place in placed} == set(family_weights(family, Sizes()))


def test_a_missing_tensor_is_an_error_that_names_it():
    tensors = tensors_of("llama")
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ModelFileError, match=r"'blk\.1\.ffn_up\.weight' is missing"):
        place_tensors(architecture("llama"), tensors, Path("m.gguf"))


def test_a_tensor_of_another_shape_is_an_error_that_names_it():
    tensors = tensors_of("llama", **{"blk.0.attn_k.weight": (64, 64)})
    with pytest.raises(ModelFileError, match=r"'blk\.0\.attn_k\.weight' has the shape \[64, 64\]"):
        place_tensors(architecture("llama"), tensors, Path("m.gguf"))


def test_a_tensor_that_belongs_nowhere_is_refused_by_name():
    tensors = tensors_of("llama", **{"blk.0.attn_sinks": (4,)})
    with pytest.raises(UnsupportedModel, match=r"'blk\.0\.attn_sinks' is no part of a llama"):
        place_tensors(architecture("llama"), tensors, Path("m.gguf"))


def test_rotary_factors_are_no_weight():
    tensors = tensors_of("llama", **{"rope_freqs.weight": (8,)})
    placed = place_tensors(architecture("llama"), tensors, Path("m.gguf"))
    assert "rope_freqs.weight" not in [tensor.name for tensor, _ in placed]


def test_llama_biases_have_places_of_their_own():
    biases = {"attn_q.bias": (64,), "attn_k.bias": (32,), "attn_v.bias": (32,)}
    biases |= {"attn_output.bias": (64,), "ffn_gate.bias": (96,), "ffn_up.bias": (96,)}
    biases |= {"ffn_down.bias": (64,)}
    both = {f"blk.{layer}.{name}": shape for layer in (0, 1) for name, shape in biases.items()}
    biased = architecture("llama", attention_bias=True, mlp_bias=True)
    placed = place_tensors(biased, tensors_of("llama", **both), Path("m.gguf"))
    changes = {place.target: place.change for _, place in placed}
    assert changes["model.layers.1.self_attn.k_proj.bias"] is RowChange.UNPERMUTE_KEY
    assert changes["model.layers.1.mlp.down_proj.bias"] is RowChange.NONE


def test_only_llama_rows_are_brought_into_another_order():
    def changed(family: str) -> set[RowChange]:
        placed = place_tensors(architecture(family), tensors_of(family), Path("m.gguf"))
        return {place.change for _, place in placed}

    assert changed("llama") == {RowChange.NONE, RowChange.UNPERMUTE_QUERY, RowChange.UNPERMUTE_KEY}
    assert changed("qwen2") == changed("qwen3") == {RowChange.NONE}
    assert changed("gemma3") == {RowChange.NONE, RowChange.MINUS_ONE}


def test_interleaved_halves_of_each_head_are_put_one_after_the_other():
    # Two query heads of four values, one key head: pairs (x0, y0), (x1, y1) become x0 x1 y0 y1.
    sizes = architecture("llama", heads=2, kv_heads=1, head_dim=4)
    rows = np.array([["a", "A"], ["b", "B"], ["c", "C"], ["d", "D"]]).reshape(8, 1)
    query = change_rows(rows, RowChange.UNPERMUTE_QUERY, sizes)
    assert "".join(query[:, 0]) == "abABcdCD"
    key = change_rows(rows[:4], RowChange.UNPERMUTE_KEY, sizes)
    assert "".join(key[:, 0]) == "abAB"
    assert change_rows(rows, RowChange.NONE, sizes) is rows
