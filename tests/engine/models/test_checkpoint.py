"""Tests of engine/models/checkpoint.py."""

import json
import math
import struct
import subprocess
import sys

import pytest

from engine.errors import ModelFileError
from engine.models.checkpoint import (
    context_tokens,
    model_name,
    read_config,
    read_header,
    read_json,
    weight_files,
)


def write_header(path, header: dict, data: bytes = b"") -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(dtype: str = "F32", shape: tuple = (2,), start: int = 0, stop: int = 8) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def test_a_sound_header_is_read_without_its_metadata(tmp_path):
    file = tmp_path / "w"
    write_header(file, {"__metadata__": {"format": "mlx"}, "t": entry()}, bytes(8))
    assert read_header(file) == {"t": entry()}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        pytest.param({"t": entry(stop=9)}, "does not match its shape", id="size and shape differ"),
        pytest.param({"t": entry(start=8, stop=16)}, "cut short", id="data past the file's end"),
        pytest.param({"t": entry(start=-8, stop=0)}, "does not match", id="a negative offset"),
        pytest.param({"t": entry(shape=(-2, -1))}, "does not match", id="a negative length"),
        pytest.param({"t": entry(dtype="F4")}, "unreadable", id="an unknown dtype"),
        pytest.param({"t": {"dtype": "F32"}}, "unreadable", id="no shape"),
        pytest.param({"t": 7}, "unreadable", id="no entry at all"),
        pytest.param({"t": entry(shape=("2",))}, "unreadable", id="a length that is text"),
    ],
)
def test_a_broken_entry_names_its_tensor(tmp_path, header, says):
    write_header(tmp_path / "w", header, bytes(8))
    with pytest.raises(ModelFileError, match=f"'t' .*{says}"):
        read_header(tmp_path / "w")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "truncated"),
        (b"1234567", "truncated"),
        (struct.pack("<Q", 50) + b"{}", "cut short"),
        (struct.pack("<Q", 2) + b"[]", "corrupt"),
        (struct.pack("<Q", 2) + b"{x", "corrupt"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "corrupt"),
        (b"GGUF" * 8, "not a safetensors file"),
    ],
)
def test_what_is_no_safetensors_file_says_so(tmp_path, content, says):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ModelFileError, match=says):
        read_header(tmp_path / "w")


def test_a_missing_shard_is_named(tmp_path):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    with pytest.raises(ModelFileError, match=r"shards .* missing: model-2\.safetensors$"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "a/b"])
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelFileError, match="outside the folder"):
        weight_files(tmp_path)


def test_without_an_index_every_shard_in_the_folder_counts(tmp_path):
    for name in ("model-b.safetensors", "model-a.safetensors", "adapter.safetensors"):
        (tmp_path / name).touch()
    names = [file.name for file in weight_files(tmp_path)]
    assert names == ["model-a.safetensors", "model-b.safetensors"]


def test_a_folder_without_weights_says_so(tmp_path):
    with pytest.raises(ModelFileError, match=r"no model\*\.safetensors"):
        weight_files(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe\x00"])
def test_json_that_is_no_object_is_a_file_error(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match="JSON"):
        read_config(tmp_path)


def test_a_missing_config_is_a_file_error_and_other_missing_files_are_none(tmp_path):
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        read_config(tmp_path)
    assert read_json(tmp_path / "generation_config.json") is None


def test_tagged_floats_become_numbers(tmp_path):
    tagged = {"a": {"__float__": "-Infinity"}, "b": [{"__float__": "NaN"}], "c": {"__float__": "x"}}
    (tmp_path / "config.json").write_text(json.dumps(tagged))
    config = read_config(tmp_path)
    assert config["a"] == -math.inf
    assert math.isnan(config["b"][0])
    assert config["c"] == {"__float__": "x"}


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_ctx": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": 0, "n_positions": 7}, 7),
        ({}, None),
    ],
)
def test_the_context_is_found_under_its_many_names(config, context):
    assert context_tokens(config) == context


def test_a_snapshot_is_named_after_its_repository(tmp_path):
    snapshot = tmp_path / "models--owner--some-name" / "snapshots" / "abc"
    assert model_name(snapshot) == "owner/some-name"
    assert model_name(tmp_path / "my-model") == "my-model"


def test_reading_headers_needs_no_mlx():
    code = "import sys, engine.models.checkpoint; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_json_nested_without_end_is_a_file_error(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ModelFileError, match="JSON"):
        read_json(file)
    file.write_bytes(struct.pack("<Q", 100_000) + b"[" * 100_000)
    with pytest.raises(ModelFileError, match="corrupt"):
        read_header(file)
