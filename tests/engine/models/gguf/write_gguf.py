"""Writes small GGUF files from their parts, so that tests can make sound and broken ones.

`write_gguf` takes metadata and tensors as they are to stand in the file; `tiny_gguf` writes a
whole random model of a family, described here independently of the reader.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Raw:
    """A tensor whose bytes are given: number format, shape (outermost first), data."""

    type_id: int
    shape: tuple[int, ...]
    data: bytes


Tensor = NDArray[Any] | Raw


def gguf_bytes(
    metadata: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    raws = {name: _raw(tensor) for name, tensor in tensors.items()}
    entries, data = b"", b""
    for name, raw in raws.items():
        data += bytes(-len(data) % alignment)
        entries += _text(name) + struct.pack("<I", len(raw.shape))
        entries += b"".join(struct.pack("<Q", length) for length in raw.shape[::-1])
        entries += struct.pack("<IQ", raw.type_id, len(data))
        data += raw.data
    head = b"GGUF" + struct.pack("<IQQ", version, len(raws), len(metadata))
    head += b"".join(_text(key) + typed_value(value) for key, value in metadata.items())
    head += entries
    return head + bytes(-len(head) % alignment) + data


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def typed_value(value: Any) -> bytes:  # noqa: PLR0911
    """A value behind its type number: str, bool, int (u32), float (f32) or a list of one kind."""
    match value:
        case bytes():  # already typed
            return value
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            items = b"".join(map(_text, value))
            return struct.pack("<IIQ", 9, 8, len(value)) + items
        case [bool(), *_]:
            return struct.pack("<IIQ", 9, 7, len(value)) + bytes(value)
        case [int(), *_]:
            return struct.pack("<IIQ", 9, 5, len(value)) + np.array(value, "<i4").tobytes()
        case [float(), *_]:
            return struct.pack("<IIQ", 9, 6, len(value)) + np.array(value, "<f4").tobytes()
        case _:
            raise TypeError(value)


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _raw(tensor: Tensor) -> Raw:
    if isinstance(tensor, Raw):
        return tensor
    type_id = {"float32": 0, "float16": 1, "uint16": 30}[tensor.dtype.name]
    return Raw(type_id, tensor.shape, tensor.tobytes())


# A tokenizer of every byte (in GPT-2's characters), one merge, and three control tokens.
def byte_characters() -> list[str]:
    """GPT-2's character for every byte, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTE_TOKENS = [*SPECIALS, *byte_characters(), "he", "<tool>"]
BYTE_VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": BYTE_TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 257, 4],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}


@dataclass
class Sizes:
    """A tiny model's sizes; a block format needs `hidden` and `inner` divisible by its values."""

    hidden: int = 64
    inner: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocabulary: int = len(BYTE_TOKENS)
    is_tied: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)


def family_metadata(family: str, sizes: Sizes) -> dict[str, Any]:
    """What a converter of that family writes besides the vocabulary."""
    values: dict[str, Any] = {
        "general.architecture": family,
        f"{family}.block_count": sizes.layers,
        f"{family}.context_length": 512,
        f"{family}.embedding_length": sizes.hidden,
        f"{family}.feed_forward_length": sizes.inner,
        f"{family}.attention.head_count": sizes.heads,
        f"{family}.attention.head_count_kv": sizes.kv_heads,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 50000.0,
    }
    if family in ("qwen3", "gemma3"):
        values[f"{family}.attention.key_length"] = sizes.head_dim
        values[f"{family}.attention.value_length"] = sizes.head_dim
    if family == "gemma3":
        values["gemma3.attention.sliding_window"] = 16
        values["gemma3.attention.sliding_window_pattern"] = 2
    return values | sizes.metadata


def family_weights(family: str, sizes: Sizes, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random float32 weights under mlx-lm's names, as mlx-lm's model computes with them."""
    rng = np.random.default_rng(seed)
    wide, query, key = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes.vocabulary, wide),
        "model.norm.weight": (wide,),
    }
    if not sizes.is_tied:
        shapes["lm_head.weight"] = (sizes.vocabulary, wide)
    parts: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (wide,),
        "post_attention_layernorm.weight": (wide,),
        "self_attn.q_proj.weight": (query, wide),
        "self_attn.k_proj.weight": (key, wide),
        "self_attn.v_proj.weight": (key, wide),
        "self_attn.o_proj.weight": (wide, query),
        "mlp.gate_proj.weight": (sizes.inner, wide),
        "mlp.up_proj.weight": (sizes.inner, wide),
        "mlp.down_proj.weight": (wide, sizes.inner),
    }
    if family == "gemma3":
        parts["pre_feedforward_layernorm.weight"] = (wide,)
        parts["post_feedforward_layernorm.weight"] = (wide,)
    if family in ("qwen3", "gemma3"):
        parts["self_attn.q_norm.weight"] = parts["self_attn.k_norm.weight"] = (sizes.head_dim,)
    if family == "qwen2":
        parts["self_attn.q_proj.bias"] = (query,)
        parts["self_attn.k_proj.bias"] = parts["self_attn.v_proj.bias"] = (key,)
    for layer in range(sizes.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return {
        name: rng.normal(scale=0.2, size=shape).astype(np.float32) for name, shape in shapes.items()
    }


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_tensors(
    family: str, sizes: Sizes, weights: dict[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """The weights as the family's converter writes them: other names, order and norms."""
    return {
        _gguf_name(family, name): _as_written(family, sizes, name, weight)
        for name, weight in weights.items()
    }


def _gguf_name(family: str, name: str) -> str:
    prefix = ""
    if name.startswith("model.layers."):
        _, _, layer, name = name.split(".", 3)
        prefix = f"blk.{layer}."
    module, kind = name.rsplit(".", 1)
    if module == "post_attention_layernorm":
        return f"{prefix}{'post_attention_norm' if family == 'gemma3' else 'ffn_norm'}.{kind}"
    return f"{prefix}{_NAMES[module]}.{kind}"


def _as_written(
    family: str, sizes: Sizes, name: str, weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    if family == "gemma3" and "norm" in name:
        return weight + 1
    heads = {"q_proj": sizes.heads, "k_proj": sizes.kv_heads}.get(name.split(".")[-2])
    if family == "llama" and heads:
        # A head's two halves, row by row: 0, half, 1, half + 1, ...
        halves = weight.reshape(heads, 2, sizes.head_dim // 2, -1)
        return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(weight.shape)
    return weight


def tiny_gguf(path: Path, family: str, sizes: Sizes | None = None, seed: int = 0) -> Path:
    """A whole random float32 model of `family` at `path`."""
    sizes = sizes or Sizes()
    tensors = gguf_tensors(family, sizes, family_weights(family, sizes, seed))
    return write_gguf(path, family_metadata(family, sizes) | BYTE_VOCABULARY, tensors)
