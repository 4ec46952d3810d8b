"""Which output head is used, and which tensors are left out."""

from pathlib import Path

import mlx.core as mx
import pytest

from engine.errors import ModelFileError
from engine.models.checkpoint import read_json
from engine.models.load import load
from tests.engine.models.tiny import VOCAB_SIZE, write_json, write_tiny

IDS = mx.array([[5, 77, 200, 3, 9, 41]])


def with_tensors(folder: Path, **tensors: mx.array) -> Path:
    path = folder / "model.safetensors"
    weights = mx.load(str(path))
    names = {name.replace("__", "."): array for name, array in tensors.items()}
    mx.save_safetensors(str(path), weights | names, metadata={"format": "mlx"})
    return folder


def without_key(folder: Path, key: str) -> Path:
    config = read_json(folder / "config.json")
    del config[key]
    write_json(folder / "config.json", config)
    return folder


def embedding(folder: Path) -> mx.array:
    return mx.load(str(folder / "model.safetensors"))["model.embed_tokens.weight"]


def test_a_head_of_its_own_is_used_where_the_config_says_nothing(tmp_path: Path):
    untied = write_tiny(tmp_path / "untied")
    silent = without_key(write_tiny(tmp_path / "silent"), "tie_word_embeddings")
    assert mx.array_equal(load(untied).model(IDS), load(silent).model(IDS))


def test_a_model_without_a_head_stays_tied(tmp_path: Path):
    tied = write_tiny(tmp_path / "tied", tie_word_embeddings=True)
    silent = write_tiny(tmp_path / "silent", tie_word_embeddings=True)
    without_key(silent, "tie_word_embeddings")
    assert mx.array_equal(load(tied).model(IDS), load(silent).model(IDS))


def test_the_head_of_a_tied_model_is_left_out(tmp_path: Path):
    tied = write_tiny(tmp_path / "tied", tie_word_embeddings=True)
    shipped = write_tiny(tmp_path / "shipped", tie_word_embeddings=True)
    with_tensors(shipped, lm_head__weight=embedding(shipped))
    loaded = load(shipped)
    assert mx.array_equal(load(tied).model(IDS), loaded.model(IDS))
    assert loaded.facts.warnings == ()


def test_a_head_that_differs_from_the_tied_embedding_is_worth_a_warning(tmp_path: Path):
    shipped = write_tiny(tmp_path / "shipped", tie_word_embeddings=True)
    with_tensors(shipped, lm_head__weight=embedding(shipped) + 1)
    (warning,) = load(shipped).facts.warnings
    assert "output head" in warning


@pytest.mark.parametrize(
    "name", ["model__layers__0__self_attn__rotary_emb__inv_freq", "model__rotary_emb__inv_freq"]
)
def test_constants_of_older_checkpoints_are_left_out_and_named(tmp_path: Path, name: str):
    plain = write_tiny(tmp_path / "plain")
    older = with_tensors(write_tiny(tmp_path / "older"), **{name: mx.ones((8,))})
    loaded = load(older)
    assert mx.array_equal(load(plain).model(IDS), loaded.model(IDS))


def test_any_other_tensor_is_still_refused(tmp_path: Path):
    folder = with_tensors(write_tiny(tmp_path), model__layers__9__weight=mx.ones((VOCAB_SIZE,)))
    with pytest.raises(ModelFileError, match="not part of this kind of model"):
        load(folder)
