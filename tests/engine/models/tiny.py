"""Tiny random models on disk: folders that the loader, the engine and mlx-lm all accept.

`write_tiny(folder, "llama")` writes config.json, model.safetensors, a byte-level tokenizer and a
chat template; the same seed writes the same bytes.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path

from engine.models.mlxlm import model_classes

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 256 + len(SPECIALS)
EOS_ID = 258  # <|im_end|>

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "eos_token_id": EOS_ID,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False, "rope_theta": 10000.0},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "rope_theta": 10000.0},
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
    },
}


def write_tiny(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: mx.Dtype = mx.float32,
    quantize: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a random model of `family` into `folder` and return the folder.

    `config` overrides keys of config.json; `quantize` goes to `nn.quantize`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = tiny_settings(family, **config)
    model = tiny_model(settings, seed=seed, dtype=dtype)
    if quantize is not None:
        nn.quantize(model, **quantize)
        settings["quantization"] = quantize
    parameters = dict(tree_flatten(model.parameters()))
    if family == "gemma3":  # mlx-lm's class takes a missing head to mean a tied one
        parameters = {k: v for k, v in parameters.items() if not k.startswith("lm_head")}
    mx.save_safetensors(str(folder / "model.safetensors"), parameters, metadata={"format": "mlx"})
    write_json(folder / "config.json", settings)
    write_tokenizer(folder)
    return folder


def tiny_settings(family: str, **config: Any) -> dict[str, Any]:
    """Return the config.json of a tiny model of `family`."""
    return {**_SHARED, **FAMILIES[family], **config}


def tiny_model(settings: dict[str, Any], *, seed: int = 0, dtype: mx.Dtype = mx.float32) -> Any:
    """Return the random model of these settings, evaluated, in memory only.

    Weights are larger than a fresh layer's, so that answers depend on the prompt and vary.
    """
    model_class, model_args = model_classes(settings)
    model = model_class(model_args.from_dict(settings))
    key = mx.random.key(seed)

    def draw(path: str, parameter: mx.array) -> mx.array:
        nonlocal key
        key, own = mx.random.split(key)
        if path.endswith("norm.weight"):
            return mx.random.uniform(0.5, 1.5, parameter.shape, key=own).astype(dtype)
        return (mx.random.normal(parameter.shape, key=own) * 0.2).astype(dtype)

    model.update(tree_map_with_path(draw, model.parameters()))
    mx.eval(model.parameters())
    return model


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the 256 bytes and `SPECIALS`, and a ChatML-like template."""
    vocab = {piece: index for index, piece in enumerate(_byte_pieces())}
    added = [
        {
            "id": 256 + index, "content": text, "special": True, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        }
        for index, text in enumerate(SPECIALS)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {**byte_level, "use_regex": True},
            "post_processor": None,
            "decoder": {**byte_level, "use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIALS[2],
            "pad_token": SPECIALS[0],
            "chat_template": TEMPLATE,
        },
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _byte_pieces() -> list[str]:
    """Return the 256 printable stand-ins that byte-level BPE uses for bytes, in byte order."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in stand_ins]
    stand_ins.update({byte: chr(256 + index) for index, byte in enumerate(hidden)})
    return [stand_ins[byte] for byte in range(256)]
