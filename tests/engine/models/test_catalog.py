"""Tests of engine/models/catalog.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.models.catalog import (
    STARTER,
    ModelKind,
    ModelPlaces,
    conversion_folder,
    current_snapshot,
    gguf_quantization,
    hub_folder,
    local_models,
    quantization_of,
)
from engine.models.starter import starter_folder
from tests.engine.models.model_folders import add_hub_gguf, add_hub_model, fill_folder
from tests.engine.models.tiny import write_json


@pytest.fixture
def places(tmp_path: Path) -> ModelPlaces:
    return ModelPlaces(home=tmp_path / "home", hub_cache=tmp_path / "hub")


def test_a_machine_without_models_has_none(places):
    assert local_models(places) == ()


def test_models_of_all_places_are_listed_by_kind_and_name(places):
    fill_folder(starter_folder(places.home))
    fill_folder(places.models / "converted-12345678")
    add_hub_model(places, "owner/b")
    add_hub_model(places, "owner/A")
    found = [(model.name, model.kind) for model in local_models(places)]
    assert found == [
        (STARTER, ModelKind.STARTER),
        ("owner/A", ModelKind.HUB),
        ("owner/b", ModelKind.HUB),
        ("converted-12345678", ModelKind.GGUF),
    ]


def test_a_model_reports_what_its_config_says(places):
    add_hub_model(
        places,
        "owner/name",
        max_position_embeddings=4096,
        quantization={"bits": 4, "group_size": 64},
    )
    (model,) = local_models(places)
    assert (model.family, model.context_tokens) == ("llama", 4096)
    assert model.quantization == "4-bit group 64"
    assert model.problem is None
    assert model.size_bytes == sum(file.stat().st_size for file in model.path.iterdir())


def test_a_broken_model_is_listed_with_what_is_wrong(places):
    broken = add_hub_model(places, "owner/broken")
    (broken / "model.safetensors").unlink()
    unreadable = add_hub_model(places, "owner/unreadable")
    (unreadable / "config.json").write_text("{")
    add_hub_model(places, "owner/sound")
    problems = {model.name: model.problem for model in local_models(places)}
    assert "no model*.safetensors" in str(problems["owner/broken"])
    assert "JSON" in str(problems["owner/unreadable"])
    assert problems["owner/sound"] is None


def test_a_model_that_lost_its_blob_is_broken(places):
    snapshot = add_hub_model(places, "owner/name")
    (snapshot / "model.safetensors").resolve().unlink()
    (model,) = local_models(places)
    assert model.problem is not None


def test_what_other_tools_keep_in_the_cache_is_no_concern_of_ours(places):
    add_hub_model(places, "owner/detector", model_type="yolo")
    (hub_folder(places.hub_cache, "owner", "empty") / "refs").mkdir(parents=True)
    (places.hub_cache / "datasets--owner--texts" / "snapshots" / "x").mkdir(parents=True)
    (places.hub_cache / "version.txt").write_text("1")
    assert local_models(places) == ()


def test_each_gguf_file_of_a_repository_is_a_model(places):
    add_hub_gguf(places, "owner/name", "m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf")
    found = [(model.name, model.quantization) for model in local_models(places)]
    assert found == [("owner/name:m-Q4_0.gguf", "Q4_0"), ("owner/name:m-Q8_0.gguf", "Q8_0")]


def test_a_gguf_file_and_what_it_was_converted_to_are_one_model(places):
    snapshot = add_hub_gguf(places, "owner/name", "m-Q4_0.gguf")
    fill_folder(conversion_folder(snapshot / "m-Q4_0.gguf", places))
    assert [model.name for model in local_models(places)] == ["owner/name:m-Q4_0.gguf"]


def test_of_a_split_gguf_the_first_part_alone_is_listed(places):
    add_hub_gguf(places, "owner/name", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert [model.path.name for model in local_models(places)] == ["m-00001-of-00002.gguf"]


def test_half_made_folders_are_not_listed(places):
    fill_folder(places.models / ".thing.making-1")
    (places.models / ".thing.lock").touch()
    assert local_models(places) == ()


def test_the_snapshot_is_the_one_main_points_at(places):
    repository = add_hub_model(places, "owner/name", commit="a" * 40).parents[1]
    add_hub_model(places, "owner/name", commit="b" * 40)
    (repository / "refs" / "main").write_text("a" * 40)
    assert current_snapshot(repository) == repository / "snapshots" / ("a" * 40)


@pytest.mark.parametrize("ref", ["", "../..", "c" * 40, "\xff"])
def test_without_a_usable_ref_the_newest_snapshot_counts(places, ref):
    repository = add_hub_model(places, "owner/name", commit="a" * 40).parents[1]
    newest = add_hub_model(places, "owner/name", commit="b" * 40)
    os.utime(newest, (2**31, 2**31))
    (repository / "refs" / "main").write_text(ref, encoding="latin-1")
    assert current_snapshot(repository) == newest


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q8_0.gguf", "Q8_0"),
        ("gemma-BF16.gguf", "BF16"),
        ("m-IQ3_XXS.gguf", "IQ3_XXS"),
        ("Qwen2.5-7B.gguf", None),
    ],
)
def test_a_gguf_files_name_reports_its_quantization(name, quantization):
    assert gguf_quantization(name) == quantization


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({}, None),
        ({"quantization": {"bits": 8, "group_size": 32, "mode": "affine"}}, "8-bit group 32"),
        (
            {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}},
            "4-bit mxfp4 group 32",
        ),
        (
            {"quantization": {"bits": 4, "group_size": 32, "lm_head": {"bits": 8}}},
            "4-bit group 32 (mixed)",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization": "yes"}, None),
    ],
)
def test_the_config_reports_the_packing(config, label):
    assert quantization_of(config) == label


def test_listing_imports_neither_mlx_nor_transformers_nor_the_hubs_client(places):
    add_hub_model(places, "owner/name")
    code = (
        "import sys; from pathlib import Path\n"
        "from engine.models.catalog import ModelPlaces, local_models\n"
        "print(len(local_models(ModelPlaces(Path(sys.argv[1]), Path(sys.argv[2])))))\n"
        "print(*{'mlx.core', 'mlx_lm', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(places.home), str(places.hub_cache)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]


def test_an_index_of_shards_counts_every_shard(places):
    snapshot = add_hub_model(places, "owner/name")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    write_json(snapshot / "model.safetensors.index.json", index)
    (model,) = local_models(places)
    assert "shard" in str(model.problem)
    assert json.loads((snapshot / "config.json").read_text())["model_type"] == "llama"
