"""Sums up what a model's files say of it, without loading weights."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engine.models.checkpoint import read_config, read_header, weight_files


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Facts of an mlx-lm folder besides those of the catalog."""

    parameters: int
    """Weights, packed ones counted singly."""
    stored_dtypes: tuple[str, ...]
    """Of the tensors, the one with most bytes first, as safetensors spells them."""
    layers: int | None
    vocab_size: int | None
    has_template: bool


def summarize(folder: Path) -> ModelSummary:
    """Read the headers of every shard and the small files.

    Raises:
        ModelFileError: A file is missing, truncated or corrupt.
        UnsupportedModel: The model wants its own code to be run.
    """
    config = read_config(folder)
    tensors: dict[str, Any] = {}
    for file in weight_files(folder):
        tensors |= read_header(file)
    bytes_of: dict[str, int] = {}
    for entry in tensors.values():
        start, stop = entry["data_offsets"]
        bytes_of[entry["dtype"]] = bytes_of.get(entry["dtype"], 0) + stop - start
    text_config = config.get("text_config") or {}
    return ModelSummary(
        parameters=sum(_count(name, tensors, config) for name in tensors),
        stored_dtypes=tuple(sorted(bytes_of, key=lambda dtype: -bytes_of[dtype])),
        layers=config.get("num_hidden_layers", text_config.get("num_hidden_layers")),
        vocab_size=config.get("vocab_size", text_config.get("vocab_size")),
        has_template=(folder / "chat_template.jinja").is_file() or _names_template(folder),
    )


def _count(name: str, tensors: dict[str, Any], config: dict[str, Any]) -> int:
    """Return the weights in one tensor; scales and biases of packed weights are none."""
    path, _, last = name.rpartition(".")
    packed = f"{path}.scales" in tensors
    if packed and last in ("scales", "biases", "global_scale"):
        return 0
    if not packed or last != "weight":
        shape: list[int] = tensors[name]["shape"]
        return prod(shape)
    packing = config.get("quantization") or {}
    own = packing.get(path)
    # Bits may differ between modules without a word in the config; groups hardly ever do.
    group_size = (own if isinstance(own, dict) else packing).get("group_size") or 64
    groups: list[int] = tensors[f"{path}.scales"]["shape"]
    return prod(groups) * int(group_size)


def _names_template(folder: Path) -> bool:
    try:
        return '"chat_template"' in (folder / "tokenizer_config.json").read_text(
            encoding="utf-8-sig"
        )
    except (OSError, ValueError):
        return False
