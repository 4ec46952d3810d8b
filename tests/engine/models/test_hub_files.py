"""Tests of engine/models/hub_files.py."""

from types import SimpleNamespace

import pytest

from engine.errors import PullFailed
from engine.models.hub_files import HubFile, choose_files
from engine.models.hub_name import HubName

NAME = HubName("owner", "name")


def chosen(*names: str, name: HubName = NAME) -> list[str]:
    files = [HubFile(one, 10, "e") for one in names]
    return [file.name for file in choose_files(name, files).files]


def test_small_files_come_before_weights():
    assert chosen("model.safetensors", "config.json") == ["config.json", "model.safetensors"]


def test_shards_their_index_and_all_kinds_of_tokenizers_are_needed():
    needed = {
        "config.json", "generation_config.json", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "tokenizer.json", "tokenizer.model", "qwen.tiktoken", "merges.txt", "chat_template.jinja",
    }  # fmt: skip
    others = {
        "README.md", "LICENSE", ".gitattributes", "pytorch_model.bin", "modeling_x.py",
        "onnx/model.safetensors", "consolidated.safetensors", "adapter.safetensors",
    }  # fmt: skip
    assert set(chosen(*needed, *others)) == needed


def test_an_mlx_folder_is_preferred_to_gguf_files_next_to_it():
    assert "m.gguf" not in chosen("config.json", "model.safetensors", "m.gguf")


def test_a_file_asked_for_by_name_is_preferred_to_an_mlx_folder():
    name = HubName("owner", "name", "m.gguf")
    assert chosen("config.json", "model.safetensors", "m.gguf", name=name) == ["m.gguf"]


def test_packings_mlx_can_keep_are_preferred_and_unknown_ones_come_last():
    assert chosen("m-IQ3_XS.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf") == ["m-Q4_0.gguf"]
    assert chosen("m-IQ3_XS.gguf", "m-Q4_K_M.gguf") == ["m-Q4_K_M.gguf"]
    assert chosen("m-IQ3_XS.gguf") == ["m-IQ3_XS.gguf"]


@pytest.mark.parametrize("file", ["Q5_K_M", "other.gguf"])
def test_a_file_that_is_not_there_is_answered_with_what_is(file):
    with pytest.raises(PullFailed, match=r"none of the files there: m-Q4_0\.gguf"):
        chosen("m-Q4_0.gguf", name=HubName("owner", "name", file))


def test_a_model_split_into_parts_is_refused():
    with pytest.raises(PullFailed, match="parts of a split model"):
        chosen("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")


def test_a_large_file_is_named_by_its_sha256_and_a_small_one_by_gits_hash():
    large = SimpleNamespace(
        rfilename="w", size=9, blob_id="1" * 40, lfs=SimpleNamespace(sha256="2" * 64, size=9)
    )
    small = SimpleNamespace(rfilename="c", size=1, blob_id="1" * 40, lfs=None)
    assert HubFile.from_sibling(large) == HubFile("w", 9, "2" * 64)
    assert HubFile.from_sibling(small) == HubFile("c", 1, "1" * 40)


def test_a_blob_of_another_size_is_not_the_file(tmp_path):
    file = HubFile("w", 3, "etag")
    (tmp_path / "etag").write_bytes(b"ab")
    assert not file.is_at(tmp_path)
    (tmp_path / "etag").write_bytes(b"abc")
    assert file.is_at(tmp_path)


@pytest.mark.parametrize("etag", ["../../config.toml", "", "x" * 40, "A" * 40, "/etc/passwd"])
def test_a_hash_that_is_none_never_becomes_a_path(etag):
    sibling = SimpleNamespace(rfilename="config.json", size=2, lfs=None, blob_id=etag)
    with pytest.raises(PullFailed, match=r"config\.json"):
        HubFile.from_sibling(sibling)
