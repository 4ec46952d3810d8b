"""Configurations of transformers 5 give the arguments that the older form gives."""

import importlib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.errors import UnsupportedModel
from engine.models.load import load
from engine.models.mlxlm import import_mlx_lm, model_classes
from engine.models.rope_config import unfold_rope
from tests.engine.models.tiny import write_tiny
from tests.engine.proofs.tiny_families import FAMILIES

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def args_class(config: Any) -> Any:
    try:
        return model_classes(config)[1]
    except UnsupportedModel:
        return None


def own_fields(family: str) -> set[str]:
    import_mlx_lm()
    args = importlib.import_module(f"mlx_lm.models.{family}").ModelArgs
    return {one.name for one in fields(args)} if is_dataclass(args) else set()


def unfolded(family: str, **config: Any) -> dict[str, Any]:
    return unfold_rope({"model_type": family, **config}, args_class)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_that_has_a_base_of_its_own_gets_it(family: str):
    known = own_fields(family)
    names = {"rope_theta", "rotary_emb_base"} & known
    parameters = {"rope_theta": 54321.0, "rope_type": "default"}
    model_type = FAMILIES[family].get("model_type", family)
    if "rope_parameters" in known or not names:
        return
    config = unfolded(model_type, rope_parameters=parameters)
    assert {config[name] for name in names} == {54321.0}


@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["default", "llama3"])
def test_a_loaded_model_has_the_same_logits_in_both_forms(tmp_path: Path, scaling: Any):
    theta = 123_456.0
    old = write_tiny(tmp_path / "old", rope_theta=theta, rope_scaling=scaling)
    nested = {**(scaling or {"rope_type": "default"}), "rope_theta": theta}
    new = write_tiny(tmp_path / "new", rope_theta=None, rope_parameters=nested)
    ids = mx.array([[5, 77, 200, 3, 9, 41]])
    expected, found = (load(folder).model(ids) for folder in (old, new))
    assert mx.array_equal(expected, found)
    assert not mx.array_equal(expected, load(write_tiny(tmp_path / "other")).model(ids))


def test_sliding_layers_keep_a_base_of_their_own(tmp_path: Path):
    old = write_tiny(tmp_path / "old", "gemma3", rope_theta=5e5, rope_local_base_freq=3e4)
    parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    new = write_tiny(tmp_path / "new", "gemma3", rope_parameters=parameters)
    ids = mx.array([[5, 77, 200, 3, 9, 41]])
    assert mx.array_equal(load(old).model(ids), load(new).model(ids))


def test_a_nested_text_model_gets_its_own():
    text = {"model_type": "mistral", "rope_parameters": {"rope_theta": 1e9}}
    assert unfolded("mistral3", text_config=text)["text_config"]["rope_theta"] == 1e9


def test_a_nested_text_model_of_an_unknown_type_gets_the_common_keys():
    text = {"model_type": "qwen2_vl_text", "rope_parameters": {"rope_theta": 1e6, **LLAMA3}}
    found = unfolded("qwen2_vl", text_config=text)["text_config"]
    assert (found["rope_theta"], found["rope_scaling"]["type"]) == (1e6, "llama3")


def test_rope_parameters_win_over_a_key_next_to_them():
    config = unfolded("llama", rope_theta=1.0, rope_parameters={"rope_theta": 5e5})
    assert config["rope_theta"] == 5e5


def test_a_required_scaling_that_is_not_there_is_none():
    assert unfolded("exaone4", rope_parameters={"rope_theta": 1e6})["rope_scaling"] is None


def test_a_family_that_reads_rope_parameters_keeps_them():
    config = {"model_type": "ministral3", "rope_parameters": {"rope_theta": 1e6}}
    assert unfold_rope(config, args_class) == config


@pytest.mark.parametrize(
    ("family", "parameters", "named"),
    [
        pytest.param(
            "llama", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor"
        ),
        pytest.param("cohere", {"rope_theta": 1e4, **LLAMA3}, "llama3"),
        pytest.param("qwen", {"rope_theta": 1e6}, "rope_theta"),
        pytest.param(
            "llama",
            {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
            "sliding",
        ),
        pytest.param("llama", {"chunked_attention": {"rope_theta": 1e6}}, "chunked_attention"),
    ],
)
def test_a_value_without_a_place_is_refused_by_name(
    family: str, parameters: dict[str, Any], named: str
):
    with pytest.raises(UnsupportedModel, match=named):
        unfolded(family, rope_parameters=parameters)


@pytest.mark.parametrize("parameters", [None, {}, [], "linear", 5])
def test_what_is_no_object_is_left_alone(parameters: Any):
    config = {"model_type": "llama", "rope_theta": 1e4, "rope_parameters": parameters}
    assert unfold_rope(config, args_class) == config
