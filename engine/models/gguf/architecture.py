"""What a GGUF file's metadata says about its model, as an mlx-lm configuration.

Families: llama (which Mistral shares), qwen2, qwen3 and gemma3. What a family's mlx-lm class
would not compute as the file intends is refused by name, never ignored.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.metadata import GgufMetadata

Config = dict[str, object]
"""The content of ``config.json``."""

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
"""mlx-lm's ``model_type`` for each GGUF architecture."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of one model, in the words of its configuration."""

    family: str
    """GGUF's name of the architecture, a key of ``MODEL_TYPES``."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    """Rows of the embedding, which may be more than the tokenizer's entries."""

    is_tied: bool
    """Whether the embedding is the output head as well."""

    attention_bias: bool = False
    mlp_bias: bool = False


def read_architecture(metadata: GgufMetadata, shapes: dict[str, tuple[int, ...]]) -> Architecture:
    """The sizes that ``metadata`` and the tensors' shapes declare.

    Args:
        metadata: the file's key-value part.
        shapes: every tensor's shape by GGUF name, outermost axis first.

    Raises:
        ModelFileError: a key is missing or senseless.
        UnsupportedModel: a sound model of a kind not read here.
    """
    family = metadata.text("general.architecture")
    if family not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise UnsupportedModel(
            f"{metadata.path}: the architecture {family!r} is not read from GGUF here ({known} are)"
        )
    if metadata.integer(f"{family}.expert_count", 0):
        raise UnsupportedModel(f"{metadata.path}: mixture-of-experts {family} is not read here")
    embedding = shapes.get("token_embd.weight", ())
    if len(embedding) != 2:
        raise ModelFileError(metadata.path, "tensor 'token_embd.weight' is missing or no matrix")
    layers = _positive(metadata, f"{family}.block_count")
    if layers > len(shapes):
        raise ModelFileError(metadata.path, f"{family}.block_count is {layers}, beyond the tensors")
    heads = _positive(metadata, f"{family}.attention.head_count")
    hidden_size = _positive(metadata, f"{family}.embedding_length")
    return Architecture(
        family=family,
        hidden_size=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(metadata, family, heads),
        head_dim=_head_dim(metadata, family, hidden_size // heads),
        intermediate_size=_positive(metadata, f"{family}.feed_forward_length"),
        vocab_size=embedding[0],
        is_tied="output.weight" not in shapes,
        attention_bias=family == "llama" and "blk.0.attn_q.bias" in shapes,
        mlp_bias=family == "llama" and "blk.0.ffn_up.bias" in shapes,
    )


def model_config(
    metadata: GgufMetadata, architecture: Architecture, rope_factors: NDArray[np.float32] | None
) -> Config:
    """``config.json`` without quantization and token ids.

    Args:
        metadata: the file's key-value part.
        architecture: what ``read_architecture`` found.
        rope_factors: float32[head_dim / 2], the tensor ``rope_freqs.weight`` where there is one.
    """
    family = architecture.family
    config: Config = {
        "model_type": MODEL_TYPES[family],
        "architectures": [_CLASS_NAMES[family]],
        "hidden_size": architecture.hidden_size,
        "num_hidden_layers": architecture.layers,
        "intermediate_size": architecture.intermediate_size,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "rms_norm_eps": _float32(metadata, f"{family}.attention.layer_norm_rms_epsilon"),
        "vocab_size": architecture.vocab_size,
        "max_position_embeddings": _positive(metadata, f"{family}.context_length"),
        "rope_theta": _float32(
            metadata, f"{family}.rope.freq_base", 1e6 if family == "gemma3" else 1e4
        ),
        "tie_word_embeddings": architecture.is_tied,
        "hidden_act": "gelu_pytorch_tanh" if family == "gemma3" else "silu",
    }
    if family == "llama":
        config["attention_bias"] = architecture.attention_bias
        config["mlp_bias"] = architecture.mlp_bias
    scaling = _rope_scaling(metadata, config, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    if family == "gemma3":
        config |= _gemma3(metadata, architecture)
    return config


_CLASS_NAMES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def _positive(metadata: GgufMetadata, key: str) -> int:
    if metadata.is_array(key):
        numbers = set(metadata.counts(key))
        if len(numbers) != 1:
            raise UnsupportedModel(f"{metadata.path}: {key} differs from layer to layer")
        value = numbers.pop()
    else:
        value = metadata.integer(key)
    if not 0 < value < 1 << 31:
        raise ModelFileError(metadata.path, f"metadata key {key!r} is {value}")
    return value


def _float32(metadata: GgufMetadata, key: str, default: float | None = None) -> float:
    """The number as short as float32 allows: 1e-05, not 9.999999747378752e-06."""
    value = float(str(np.float32(metadata.number(key, default))))
    if not 0 < value < np.inf:
        raise ModelFileError(metadata.path, f"metadata key {key!r} is {value}")
    return value


def _kv_heads(metadata: GgufMetadata, family: str, heads: int) -> int:
    key = f"{family}.attention.head_count_kv"
    kv_heads = _positive(metadata, key) if key in metadata else heads
    if heads % kv_heads:
        raise ModelFileError(metadata.path, f"{key} {kv_heads} does not divide {heads} heads")
    return kv_heads


def _head_dim(metadata: GgufMetadata, family: str, default: int) -> int:
    head_dim = default
    if f"{family}.attention.key_length" in metadata:
        head_dim = _positive(metadata, f"{family}.attention.key_length")
    for key in (f"{family}.attention.value_length", f"{family}.rope.dimension_count"):
        if metadata.integer(key, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{metadata.path}: {key} is {metadata.integer(key)}, "
                f"unlike the {head_dim} values of an attention head"
            )
    if head_dim == 0 or head_dim % 2:
        raise ModelFileError(metadata.path, f"attention heads of {head_dim} values are impossible")
    return head_dim


def _rope_scaling(
    metadata: GgufMetadata, config: Config, factors: NDArray[np.float32] | None
) -> Config | None:
    """mlx-lm's ``rope_scaling``, or None where positions are not scaled."""
    family = metadata.text("general.architecture")
    if factors is not None:
        return _llama3_scaling(metadata, config, factors.astype(np.float64))
    # Files of 2023 say only ``scale_linear``.
    legacy = metadata.number(f"{family}.rope.scale_linear", 1.0)
    kind = metadata.text(f"{family}.rope.scaling.type", "none" if legacy == 1 else "linear")
    if kind == "none":
        return None
    factor = metadata.number(f"{family}.rope.scaling.factor", legacy)
    if factor <= 0:
        raise ModelFileError(metadata.path, f"the rope scaling factor is {factor}")
    if kind == "linear":
        return None if factor == 1 else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = metadata.integer(f"{family}.rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise UnsupportedModel(f"{metadata.path}: rope scaling of type {kind!r} is not read here")


def _llama3_scaling(metadata: GgufMetadata, config: Config, factors: NDArray[np.float64]) -> Config:
    """Llama 3.1's scaling, recognised by the factors it leaves in ``rope_freqs.weight``.

    The parameters are not in the file. All released models share these three and differ in
    ``factor``, which the slowest dimension shows; anything else is refused.
    """
    scaling: Config = {
        "rope_type": "llama3",
        "factor": float(factors[-1]),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta, head_dim = config["rope_theta"], config["head_dim"]
    assert isinstance(theta, float)
    assert isinstance(head_dim, int)
    expected = _llama3_factors(theta, head_dim, float(factors[-1]))
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise UnsupportedModel(
            f"{metadata.path}: tensor 'rope_freqs.weight' scales positions in a way not known here"
        )
    return scaling


def _llama3_factors(theta: float, head_dim: int, factor: float) -> NDArray[np.float64]:
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def _gemma3(metadata: GgufMetadata, architecture: Architecture) -> Config:
    if metadata.number("gemma3.final_logit_softcapping", 0.0):
        raise UnsupportedModel(f"{metadata.path}: gemma3 with capped logits is not read here")
    # The 27B model alone (62 layers) scales queries by its width per head.
    is_27b = architecture.layers == 62
    query_scale = architecture.hidden_size // architecture.heads
    pattern = _sliding_window_pattern(metadata, architecture.layers)
    return {
        "query_pre_attn_scalar": query_scale if is_27b else architecture.head_dim,
        "sliding_window": _positive(metadata, "gemma3.attention.sliding_window"),
        "sliding_window_pattern": pattern,
        "rope_local_base_freq": _float32(metadata, "gemma3.rope.freq_base_swa", 1e4),
    }


def _sliding_window_pattern(metadata: GgufMetadata, layers: int) -> int:
    """Every how many layers one attends to everything; six unless the file says otherwise."""
    key = "gemma3.attention.sliding_window_pattern"
    if key not in metadata:
        pattern = 6
    elif metadata.is_array(key):
        slides = [bool(slide) for slide in metadata.numbers(key)]
        pattern = slides.index(False) + 1 if False in slides else 0
        regular = [bool((layer + 1) % pattern) for layer in range(layers)] if pattern else []
        if slides != regular:
            raise UnsupportedModel(f"{metadata.path}: {key} is irregular")
    else:
        pattern = _positive(metadata, key)
    if pattern > layers:
        raise UnsupportedModel(
            f"{metadata.path}: gemma3 with {layers} layers has none without a sliding window"
        )
    return pattern
