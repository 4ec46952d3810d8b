"""mlx-lm's own continuous batching, for tests that compare batches with it."""

from collections.abc import Sequence
from typing import Any

from engine.models.mlxlm import import_generation


def mlx_lm_batch(
    model: Any, prompts: Sequence[Sequence[int]], *, max_tokens: int
) -> list[list[int]]:
    """What mlx-lm writes greedily for all prompts at once."""
    generator = import_generation().BatchGenerator(model, max_tokens=max_tokens)
    uids = generator.insert([list(prompt) for prompt in prompts])
    written: dict[int, list[int]] = {uid: [] for uid in uids}
    waiting = set(uids)
    while waiting:
        _, responses = generator.next()
        for response in responses:
            written[response.uid].append(response.token)
            if response.finish_reason is not None:
                waiting.discard(response.uid)
    return [written[uid] for uid in uids]
