"""Settles which output head a checkpoint is to use, and drops tensors that no forward needs.

Where config.json does not say ``tie_word_embeddings``, some of mlx-lm's classes (0.32.2) tie the
head to the embedding and drop the one that the checkpoint ships; transformers uses it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

from engine.models.weights import flat_parameters

TIE = "tie_word_embeddings"
TEXT = "text_config"

_HEAD = re.compile(r"(?:^|\.)lm_head\.weight$")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings)\.weight$")
_COMPARED_ROWS = 64
"""Of the first and of the last rows: heads that were trained apart differ in all."""

_UNUSED = re.compile(
    r"(?:^|\.)(?:inv_freq|cos_cached|sin_cached|masked_bias|position_ids)$"
    r"|(?:^|\.)lm_head\.(?:weight|scales|biases)$"
)
"""Constants that older checkpoints stored, and the head of a model that ties it."""


def with_shipped_head(
    config: dict[str, Any],
    weights: Mapping[str, mx.array],
    args_of: Callable[[Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """Return config.json with ``tie_word_embeddings`` off if it is absent and a head is there."""
    if not any(map(_HEAD.search, weights)):
        return config
    text = config.get(TEXT)
    if isinstance(text, dict):
        config = {**config, TEXT: _untied(text, args_of(text))}
    return _untied(config, args_of(config))


def head_warnings(config: Mapping[str, Any], weights: Mapping[str, mx.array]) -> tuple[str, ...]:
    """Say that a head is not used where config.json ties it and it differs from the embedding."""
    text = config.get(TEXT)
    tied = config.get(TIE, text.get(TIE) if isinstance(text, Mapping) else None)
    head = next((weights[name] for name in weights if _HEAD.search(name)), None)
    embedding = next((weights[name] for name in weights if _EMBEDDING.search(name)), None)
    if not tied or head is None or embedding is None or not _differ(head, embedding):
        return ()
    return (
        f"the checkpoint has an output head of its own, and config.json says {TIE}: "
        "the embedding is used as the head",
    )


def drop_unused(model: nn.Module, weights: dict[str, mx.array]) -> tuple[str, ...]:
    """Drop, in place, tensors that the model has no use for; a note that names them."""
    extra = weights.keys() - flat_parameters(model).keys()
    unused = sorted(name for name in extra if _UNUSED.search(name) and not _is_head(model, name))
    for name in unused:
        del weights[name]
    if not unused:
        return ()
    more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
    return (f"left out tensors that no forward needs: {unused[0]}{more}",)


def _is_head(model: nn.Module, name: str) -> bool:
    """Whether a tensor belongs to a head that the model has: its scales, for example."""
    head = name.rpartition(".")[0]
    return "lm_head" in name and any(path == head for path, _ in model.named_modules())


def _untied(config: dict[str, Any], args: Any) -> dict[str, Any]:
    has_field = is_dataclass(args) and TIE in {one.name for one in fields(args)}
    return {**config, TIE: False} if has_field and TIE not in config else config


def _differ(head: mx.array, embedding: mx.array) -> bool:
    if head.shape != embedding.shape or head.dtype != embedding.dtype:
        return False  # packed in another way: their values cannot be compared
    return not all(
        mx.array_equal(head[rows], embedding[rows])
        for rows in (slice(_COMPARED_ROWS), slice(-_COMPARED_ROWS, None))
    )
