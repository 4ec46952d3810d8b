"""Which tensors a model must have, under which names and shapes, and how each is stored.

GGUF's llama files hold the rows of the query and key projections in another order than mlx-lm
expects, and gemma files hold norm weights with one added; both are undone here, the first on
packed rows, which loses nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.architecture import Architecture
from engine.models.gguf.reader import TensorInfo

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that becomes part of the configuration, not a weight."""


class RowChange(Enum):
    """What is done to a tensor's rows besides decoding them."""

    NONE = auto()
    UNPERMUTE_QUERY = auto()
    UNPERMUTE_KEY = auto()
    MINUS_ONE = auto()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one tensor of the file goes."""

    source: str
    """Name in the GGUF file."""

    target: str
    """Name in mlx-lm's model."""

    shape: tuple[int, ...]
    change: RowChange = RowChange.NONE


def place_tensors(
    architecture: Architecture, tensors: dict[str, TensorInfo], path: Path
) -> list[tuple[TensorInfo, Placement]]:
    """Each tensor with its place, in the file's order.

    Raises:
        ModelFileError: a tensor is missing or has another shape than its model needs.
        UnsupportedModel: a tensor belongs to no part of the model known here.
    """
    wanted = {place.source: place for place in _placements(architecture)}
    for place in wanted.values():
        if place.source not in tensors:
            raise ModelFileError(path, f"tensor {place.source!r} is missing")
        shape = tensors[place.source].shape
        if shape != place.shape:
            raise ModelFileError(
                path,
                f"tensor {place.source!r} has the shape {list(shape)}, not {list(place.shape)}",
            )
    placed = []
    for name, tensor in tensors.items():
        if name == ROPE_FACTORS:
            continue
        if name not in wanted:
            raise UnsupportedModel(
                f"{path}: tensor {name!r} is no part of a {architecture.family} model known here"
            )
        placed.append((tensor, wanted[name]))
    return placed


def change_rows(
    rows: NDArray[np.generic], change: RowChange, architecture: Architecture
) -> NDArray[np.generic]:
    """``rows`` in mlx-lm's order: a permutation undone; other changes leave rows alone."""
    match change:
        case RowChange.UNPERMUTE_QUERY:
            return rows[_rotary_order(architecture.heads, architecture.head_dim)]
        case RowChange.UNPERMUTE_KEY:
            return rows[_rotary_order(architecture.kv_heads, architecture.head_dim)]
        case RowChange.NONE | RowChange.MINUS_ONE:
            return rows


def _rotary_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """For each row of mlx-lm's order, its row in a llama GGUF.

    mlx-lm rotates the first half of a head with the second half; a llama GGUF interleaves the two.
    """
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _placements(sizes: Architecture) -> Iterator[Placement]:
    width, vocabulary = sizes.hidden_size, sizes.vocab_size
    norm = RowChange.MINUS_ONE if sizes.family == "gemma3" else RowChange.NONE
    yield Placement("token_embd.weight", "model.embed_tokens.weight", (vocabulary, width))
    yield Placement("output_norm.weight", "model.norm.weight", (width,), norm)
    if not sizes.is_tied:
        yield Placement("output.weight", "lm_head.weight", (vocabulary, width))
    for layer in range(sizes.layers):
        source, target = f"blk.{layer}.", f"model.layers.{layer}."
        for place in (*_norms(sizes, norm), *_attention(sizes), *_feed_forward(sizes)):
            yield Placement(source + place.source, target + place.target, place.shape, place.change)


def _norms(sizes: Architecture, change: RowChange) -> Iterator[Placement]:
    wide, narrow = (sizes.hidden_size,), (sizes.head_dim,)
    yield Placement("attn_norm.weight", "input_layernorm.weight", wide, change)
    if sizes.family == "gemma3":
        yield Placement("ffn_norm.weight", "pre_feedforward_layernorm.weight", wide, change)
        yield Placement(
            "post_attention_norm.weight", "post_attention_layernorm.weight", wide, change
        )
        yield Placement("post_ffw_norm.weight", "post_feedforward_layernorm.weight", wide, change)
    else:
        yield Placement("ffn_norm.weight", "post_attention_layernorm.weight", wide, change)
    if sizes.family in ("qwen3", "gemma3"):
        yield Placement("attn_q_norm.weight", "self_attn.q_norm.weight", narrow, change)
        yield Placement("attn_k_norm.weight", "self_attn.k_norm.weight", narrow, change)


def _attention(sizes: Architecture) -> Iterator[Placement]:
    width = sizes.hidden_size
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    is_llama = sizes.family == "llama"
    query_change = RowChange.UNPERMUTE_QUERY if is_llama else RowChange.NONE
    key_change = RowChange.UNPERMUTE_KEY if is_llama else RowChange.NONE
    yield Placement("attn_q.weight", "self_attn.q_proj.weight", (query, width), query_change)
    yield Placement("attn_k.weight", "self_attn.k_proj.weight", (key, width), key_change)
    yield Placement("attn_v.weight", "self_attn.v_proj.weight", (key, width))
    yield Placement("attn_output.weight", "self_attn.o_proj.weight", (width, query))
    if sizes.family == "qwen2" or sizes.attention_bias:
        yield Placement("attn_q.bias", "self_attn.q_proj.bias", (query,), query_change)
        yield Placement("attn_k.bias", "self_attn.k_proj.bias", (key,), key_change)
        yield Placement("attn_v.bias", "self_attn.v_proj.bias", (key,))
    if sizes.attention_bias:
        yield Placement("attn_output.bias", "self_attn.o_proj.bias", (width,))


def _feed_forward(sizes: Architecture) -> Iterator[Placement]:
    width, inner = sizes.hidden_size, sizes.intermediate_size
    yield Placement("ffn_gate.weight", "mlp.gate_proj.weight", (inner, width))
    yield Placement("ffn_up.weight", "mlp.up_proj.weight", (inner, width))
    yield Placement("ffn_down.weight", "mlp.down_proj.weight", (width, inner))
    if sizes.mlp_bias:
        yield Placement("ffn_gate.bias", "mlp.gate_proj.bias", (inner,))
        yield Placement("ffn_up.bias", "mlp.up_proj.bias", (inner,))
        yield Placement("ffn_down.bias", "mlp.down_proj.bias", (width,))
