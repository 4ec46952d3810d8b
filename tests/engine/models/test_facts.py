"""Tests of engine/models/facts.py."""

from types import SimpleNamespace

import pytest

from engine.models.facts import (
    context_or_fallback,
    eos_ids,
    generation_defaults,
    quantization_label,
    read_geometry,
)
from tests.engine.models.tiny import FAMILIES, VOCAB_SIZE, tiny_model, tiny_settings


@pytest.mark.parametrize("family", FAMILIES)
def test_the_geometry_is_read_off_the_graph(family):
    geometry = read_geometry(tiny_model(tiny_settings(family)))
    assert (geometry.vocab_size, geometry.layers) == (VOCAB_SIZE, 2)
    assert geometry.kv_bytes_per_token == 2 * 2 * (2 * 16) * 4


def test_the_logits_may_be_wider_than_the_tokenizer():
    assert read_geometry(tiny_model(tiny_settings("llama", vocab_size=320))).vocab_size == 320


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "merged"),
    [
        ({"eos_token_id": 1}, {"eos_token_id": [2, 3]}, {4}, {1, 2, 3, 4}),
        ({"text_config": {"eos_token_id": 5}}, {}, set(), {5}),
        ({"eos_token_id": None}, {"eos_token_id": "7"}, set(), set()),
        ({"eos_token_id": [-1, 99, 100, True]}, {}, set(), {99}),
    ],
)
def test_end_tokens_are_merged_and_what_is_none_is_dropped(config, generation, tokenizer, merged):
    assert eos_ids(config, generation, tokenizer, 100) == merged


@pytest.mark.parametrize(
    ("generation", "found"),
    [
        ({}, {}),
        (
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "typical_p": 0.9},
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "typical_p": 0.9},
        ),
        (
            {"temperature": 1, "repetition_penalty": 1.1},
            {"temperature": 1.0, "repetition_penalty": 1.1},
        ),
        ({"temperature": 0.6, "do_sample": False}, {"temperature": 0.0}),
        ({"temperature": "hot", "top_p": 2, "top_k": True, "min_p": None}, {}),
        ({"temperature": -1, "top_k": -1, "repetition_penalty": 0}, {"top_k": -1}),
        ({"temperature": float("inf"), "top_k": 40.0, "max_new_tokens": 9}, {"top_k": 40}),
    ],
)
def test_generation_defaults(generation, found):
    assert generation_defaults(generation) == found


def test_a_context_not_named_is_the_familys_default_else_a_safe_one():
    family = SimpleNamespace(max_position_embeddings=32768)
    assert context_or_fallback({}, family) == 32768
    assert context_or_fallback({"n_ctx": 9}, family) == 9
    assert context_or_fallback({}, SimpleNamespace()) == 2048


@pytest.mark.parametrize(
    ("labels", "label"),
    [([], None), (["4-bit"], "4-bit"), (["8-bit", "4-bit", "4-bit"], "4-bit + 8-bit")],
)
def test_the_most_frequent_packing_is_named_first(labels, label):
    assert quantization_label(labels) == label
