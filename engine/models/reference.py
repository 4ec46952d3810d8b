"""mlx-lm's own generation, the reference for ours: parity, tests and benchmarks use it.

Facts checked on mlx-lm 0.32.2: ``generate_step`` forwards the prompt but its last token in chunks
and the last token as the first decode step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.models.mlxlm import import_generation


def reference_tokens(
    model: Any,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    eos_ids: frozenset[int] = frozenset(),
    chunk_tokens: int = 2048,
    penalties: Mapping[str, float] | None = None,
) -> list[int]:
    """What mlx-lm writes greedily, up to an end token (left out) or ``max_tokens``.

    Args:
        model: an mlx-lm model.
        prompt_ids: the prompt.
        max_tokens: most tokens to write.
        eos_ids: what ends the answer.
        chunk_tokens: most prompt tokens of one forward.
        penalties: arguments of mlx-lm's ``make_logits_processors``.
    """
    generation = import_generation()
    written: list[int] = []
    steps = generation.generate_step(
        mx.array(list(prompt_ids)),
        model,
        max_tokens=max_tokens,
        prefill_step_size=chunk_tokens,
        logits_processors=_processors(penalties),
    )
    for token, _ in steps:
        if token in eos_ids:
            break
        written.append(token)
    return written


def reference_logits(
    model: Any, prompt_ids: Sequence[int], steps: int, *, chunk_tokens: int = 2048
) -> tuple[list[int], list[mx.array]]:
    """mlx-lm's forwards on its own caches: chunks, the last prompt token alone, greedy steps.

    Returns:
        The tokens, and float[V] logits for each, evaluated.
    """
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    body, token = list(prompt_ids[:-1]), prompt_ids[-1]
    for start in range(0, len(body), chunk_tokens):
        model(mx.array([body[start : start + chunk_tokens]]), cache=cache)
        mx.eval([entry.state for entry in cache])
    tokens, logits = [], []
    for _ in range(steps):
        row = model(mx.array([[token]]), cache=cache)[0, -1]
        token = int(mx.argmax(row).item())  # type: ignore[arg-type]  # a real scalar
        tokens.append(token)
        logits.append(row)
    return tokens, logits


@dataclass(frozen=True, slots=True)
class ForcedChoice:
    """What the reference would have written where it is made to follow another answer."""

    best: int
    top_two_gap: float
    """In logits, between its best token and the next one."""


def forced_choices(
    model: Any, prompt_ids: Sequence[int], written: Sequence[int], *, chunk_tokens: int = 2048
) -> list[ForcedChoice]:
    """mlx-lm's choice at each place of an answer, given the answer up to there."""
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    body = list(prompt_ids[:-1])
    for start in range(0, len(body), chunk_tokens):
        model(mx.array([body[start : start + chunk_tokens]]), cache=cache)
        mx.eval([entry.state for entry in cache])
    choices = []
    for token in [prompt_ids[-1], *written[:-1]][: len(written)]:
        row = model(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32)
        second, first = mx.sort(row)[-2:]
        best = int(mx.argmax(row).item())  # type: ignore[arg-type]  # real scalars
        gap = float((first - second).item())  # type: ignore[arg-type]
        choices.append(ForcedChoice(best, gap))
    return choices


def _processors(penalties: Mapping[str, float] | None) -> list[Any] | None:
    if not penalties:
        return None
    from mlx_lm.sample_utils import make_logits_processors

    processors: list[Any] = make_logits_processors(**penalties)
    return processors
