"""Mirostat: keeps the surprise of the drawn tokens near a target by feedback.

It replaces the truncation stages of a row. The device drops what is too surprising for the
current bound ``mu``; the host moves ``mu`` after it has read the token.

Source: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls
Perplexity", 2021; m = 100 as in llama.cpp.
"""

import math

import mlx.core as mx

from engine.sampling.thresholds import rank_cut

BEST_TOKENS = 100
"""Tokens that version 1 fits the Zipf exponent to."""

_LN2 = math.log(2.0)


def first_mu(tau: float) -> float:
    """``mu`` before any token was drawn, in bits."""
    return 2.0 * tau


def next_mu(mu: float, *, logprob: float, tau: float, eta: float) -> float:
    """``mu`` after a token whose natural-log probability among the kept ones is ``logprob``."""
    surprise = -logprob / _LN2
    return mu - eta * (surprise - tau)


def mirostat_keep(
    tempered: mx.array, mu: mx.array, version: mx.array, *, with_v1: bool
) -> mx.array:
    """What each row's bound leaves.

    Args:
        tempered: float32[R, V], logits after temperature.
        mu: float32[R, 1], bits.
        version: int32[R, 1]; 0 keeps everything.
        with_v1: whether some row uses version 1.

    Returns:
        bool[R, V]; the most likely token is always kept.
    """
    logprobs = tempered - mx.logsumexp(tempered, axis=-1, keepdims=True)
    best = logprobs.max(axis=-1, keepdims=True)
    keep = (logprobs >= -mu * _LN2) | (logprobs >= best) | (version != 2)
    if with_v1:
        rank = mx.where(version == 1, _zipf_rank(logprobs, mu), 0)
        keep = keep & rank_cut(logprobs, rank, logprobs.shape[-1])
    return keep


def _zipf_rank(logprobs: mx.array, mu: mx.array) -> mx.array:
    """int32[R, 1]: how many tokens version 1 keeps, from the fitted Zipf exponent."""
    width = logprobs.shape[-1]
    count = min(BEST_TOKENS, width)
    best = -mx.sort(-mx.topk(logprobs, count, axis=-1), axis=-1)
    index = mx.arange(1, count, dtype=mx.float32)
    ratio = mx.log((index + 1) / index)[None]
    drop = best[:, :-1] - best[:, 1:]
    usable = best[:, 1:] > -mx.inf
    fit = mx.where(usable, ratio * drop, 0.0).sum(axis=-1, keepdims=True)
    exponent = fit / mx.maximum(
        mx.where(usable, mx.square(ratio), 0.0).sum(axis=-1, keepdims=True), 1e-9
    )
    exponent = mx.maximum(exponent, 1e-3)
    excess = exponent - 1
    # As the excess goes to 0, excess / (1 - V^-excess) goes to 1 / ln V.
    flat = mx.abs(excess) < 1e-4
    safe = mx.where(flat, 1.0, excess)
    scale = mx.where(flat, 1 / math.log(max(width, 2)), safe / (1 - mx.power(float(width), -safe)))
    log_rank = (mx.log(mx.maximum(scale, 1e-30)) + mu * _LN2) / exponent
    most = math.log(width)
    return mx.floor(mx.exp(mx.clip(log_rank, 0.0, most))).astype(mx.int32)
