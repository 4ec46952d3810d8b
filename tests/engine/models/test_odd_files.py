"""Files that other tools write, or break: loaded with a note, or refused by name."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError, ModelFileError
from engine.models.catalog import ModelKind, ModelPlaces, describe
from engine.models.checkpoint import INDEX, weight_files
from engine.models.load import load
from engine.models.resolve import resolve
from tests.engine.models.gguf.write_gguf import tiny_gguf
from tests.engine.models.tiny import write_json, write_tiny

IDS = mx.array([[5, 77, 200, 3, 9, 41]])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
KEYS = (
    "architectures", "text_config", "quantization", "quantization_config", "model_type",
    "max_position_embeddings", "eos_token_id", "rope_parameters", "model_file",
)  # fmt: skip


def test_an_index_of_shards_that_are_not_here_is_replaced_by_the_whole_file(tmp_path: Path):
    folder = write_tiny(tmp_path)
    write_json(folder / INDEX, {"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    assert any(INDEX in note for note in load(folder).facts.notes)


def test_missing_shards_are_all_named(tmp_path: Path):
    folder = write_tiny(tmp_path)
    (folder / "model.safetensors").rename(folder / "model-00002-of-00003.safetensors")
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    write_json(folder / INDEX, {"weight_map": dict(zip("abc", names, strict=True))})
    with pytest.raises(ModelFileError, match=f"{names[0]}, {names[2]}"):
        load(folder)


def test_a_shard_that_stayed_behind_is_not_read(tmp_path: Path):
    folder = write_tiny(tmp_path)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"torn")
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, name: str):
    plain = load(write_tiny(tmp_path / "plain"))
    marked = write_tiny(tmp_path / "marked")
    (marked / name).write_bytes(b"\xef\xbb\xbf" + (marked / name).read_bytes())
    loaded = load(marked)
    assert mx.array_equal(loaded.model(IDS), plain.model(IDS))
    assert loaded.tokenizer.encode("<|im_end|>ab", parse_special=True) == plain.tokenizer.encode(
        "<|im_end|>ab", parse_special=True
    )
    assert loaded.eos_ids == plain.eos_ids


def test_a_byte_order_mark_before_a_template_is_not_printed(tmp_path: Path):
    folder = write_tiny(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xef\xbb\xbf{{ messages[0].content }}")
    template = load(folder).template
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]).text == "hi"


def test_a_tokenizer_of_more_tokens_than_the_embedding_loads_with_a_note(tmp_path: Path):
    folder = write_tiny(tmp_path)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    extra = dict(content["added_tokens"][-1]) | {"id": 259, "content": "<|extra|>"}
    content["added_tokens"].append(extra)
    write_json(path, content)
    loaded = load(folder)
    assert any("tokenizer has 260 tokens" in note for note in loaded.facts.notes)
    assert loaded.facts.vocab_size == 259


@given(key=st.sampled_from(KEYS), value=JSON)
def test_no_value_in_a_config_ends_a_list_of_models(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
):
    folder = tmp_path_factory.mktemp("odd")
    config = {"model_type": "llama", key: value}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    assert describe(folder, "odd", ModelKind.FOLDER).name == "odd"


@given(key=st.sampled_from(KEYS), value=JSON)
def test_no_value_in_a_config_is_more_than_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
):
    folder = write_tiny(tmp_path_factory.mktemp("odd"))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {key: value})
    try:
        load(folder)
    except EngineError:
        return


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path):
    blob = tiny_gguf(tmp_path / "m.gguf", "llama").rename(tmp_path / "sha256-0123")
    places = ModelPlaces(home=tmp_path / "home", hub_cache=tmp_path / "hub")
    found = resolve(str(blob), places)
    assert (found.kind, found.name) == (ModelKind.GGUF, "sha256-0123")
    assert (found.folder / "config.json").is_file()
