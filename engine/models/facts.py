"""Holds what is known of a loaded model besides its weights, and reads it from the files."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from engine.errors import InvalidParams
from engine.models.checkpoint import context_tokens
from engine.params import SAMPLING_FIELDS

RECOMMENDED = frozenset(
    {"temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"}
)
"""Sampling parameters that generation_config.json has under the same name and meaning."""

# For the few folders that say nothing of it; every family we know was trained with this at least.
_FALLBACK_CONTEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a front end may want to know of a model."""

    name: str
    path: Path
    family: str
    """`model_type` of config.json."""
    vocab_size: int
    """Width of the logits: the bound for every token id, at least the tokenizer's size."""
    context_tokens: int
    """The longest sequence the model was made for."""
    layers: int
    kv_bytes_per_token: int
    """Of all layers that keep keys and values; windowed layers stop growing at their window."""
    dtype: str
    """Of the activations."""
    quantization: str | None
    """As it is in memory: ``"4-bit group 32"``; None for dense weights."""
    weight_bytes: int
    """In memory."""
    notes: tuple[str, ...]
    """What was chosen at loading and why."""
    template_text: str | None
    """The chat template's source."""
    warnings: tuple[str, ...] = ()
    """What may make its answers worse than its authors meant."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What one step's graph shows of a model."""

    vocab_size: int
    layers: int
    kv_bytes_per_token: int


def read_geometry(model: Any) -> Geometry:
    """Build, and never evaluate, the graph of one step, and read its shapes.

    That holds for every family, whatever it calls its head and its caches.
    """
    from mlx_lm.models.cache import make_prompt_cache

    caches = make_prompt_cache(model)
    logits = model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    return Geometry(
        vocab_size=int(logits.shape[-1]),
        layers=len(model.layers),
        kv_bytes_per_token=sum(_bytes_per_token(part) for part in _parts(caches)),
    )


def context_or_fallback(config: Mapping[str, Any], args: Any) -> int:
    """Return the context of config.json, else the family's own default, else a safe one."""
    return context_tokens(config) or context_tokens(vars(args)) or _FALLBACK_CONTEXT_TOKENS


def eos_ids(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    of_tokenizer: Iterable[int],
    vocab_size: int,
) -> frozenset[int]:
    """Merge the end-of-text tokens of every file that names some; ids no logit has are dropped."""
    text_config = config.get("text_config")
    named: list[Any] = [*of_tokenizer]
    for part in (config, text_config, generation):
        if isinstance(part, Mapping):
            found = part.get("eos_token_id")
            named.extend(found if isinstance(found, list) else [found])
    return frozenset(
        token
        for token in named
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size
    )


def generation_defaults(generation: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the sampling parameters of generation_config.json that can be used, by name.

    The names are those of `SamplingParams`.
    """
    found: dict[str, float] = {}
    for one in SAMPLING_FIELDS:
        value: Any = generation.get(one.name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if one.name not in RECOMMENDED or not is_number:
            continue
        with suppress(InvalidParams):  # too low or too high: as if it said nothing
            one.check(value)
            found[one.name] = one.type(value)
    if generation.get("do_sample") is False:
        found["temperature"] = 0.0
    return MappingProxyType(found)


def quantization_label(labels: Iterable[str]) -> str | None:
    """Return one label for the packings of all modules, the most frequent one first."""
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    if not counts:
        return None
    return " + ".join(sorted(counts, key=lambda label: (-counts[label], label)))


def _parts(caches: Iterable[Any]) -> Iterator[Any]:
    """Yield the caches inside lists of caches too."""
    for cache in caches:
        yield from _parts(cache.caches) if hasattr(cache, "caches") else (cache,)


def _bytes_per_token(cache: Any) -> int:
    arrays = (getattr(cache, "keys", None), getattr(cache, "values", None))
    return sum(
        array.shape[1] * array.shape[-1] * array.dtype.size
        for array in arrays
        if isinstance(array, mx.array) and array.ndim == 4
    )
