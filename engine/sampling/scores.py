"""What a draw takes the largest of: one score a token, to see how close a choice was.

For samplers without filters (top-k and the like), whose cuts are a matter of their own.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine.sampling.adjustments import adjust, upload_adjustments
from engine.sampling.chain import LEAST_TEMPERATURE
from engine.sampling.penalties import penalise, upload_windows
from engine.sampling.plan import LOW_BITS, DrawPlan, DrawRow
from engine.sampling.random import gumbel_all
from engine.sampling.row_sampler import RowSampler


def token_scores(sampler: RowSampler, ids: Sequence[int], logits: mx.array) -> mx.array:
    """The scores whose largest is the token after ``ids``; differences are in logits.

    Args:
        sampler: the row's; without filters, mirostat and dynamic temperature.
        ids: prompt and answer so far.
        logits: float[V], the model's.

    Returns:
        float32[V]: logits with biases, penalties and DRY; of a row that draws, also with the
        position's noise, at the scale of the logits.
    """
    position = len(ids)
    plan = DrawPlan.of([sampler])
    shaped = logits[None].astype(mx.float32)
    fixed = plan.fixed_adjustments([DrawRow(sampler, position, ids)])
    if fixed is not None:
        shaped = adjust(shaped, fixed)
    if plan.penalties is not None:
        sampler.advance(ids, position - 1)
        newest = mx.array([ids[-1]], mx.int32)
        window = upload_windows([sampler.window])
        shaped = penalise(shaped, newest=newest, window=window, knobs=plan.penalties)
    if sampler.dry is not None:
        sampler.dry.extend(ids, position)
        repeats = upload_adjustments([sampler.dry.penalties()])
        if repeats is not None:
            shaped = adjust(shaped, repeats)
    if sampler.is_greedy:
        return shaped[0]
    key = sampler.token_key(position)
    keys = mx.array([[key & LOW_BITS, key >> 32]], mx.uint32)
    heat = max(sampler.params.temperature, LEAST_TEMPERATURE)
    return shaped[0] + heat * gumbel_all(keys, sampler.vocab_size)[0]
