"""The stages between adjusted logits and tokens, for all rows of a batch at once.

Order (llama.cpp's): top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature, draw. Every
filter looks at the un-tempered distribution, renormalised over what is kept so far. Parameters
are arrays of one value a row, so rows with different settings share one graph, and a stage that
no row uses is not built. A row that does not use a built stage carries the value that makes the
stage keep everything.

Two widths, one result: when every drawing row has a small top-k the stages run on the few best
candidates, sorted (*narrow*); else on the whole vocabulary, without a sort (*wide*). Cuts are
values (``thresholds``), noise is indexed by token id (``random``), so both choose the same token.
The exceptions are tokens that tie exactly with the last of the candidates, and floating-point
near-ties of a probability mass with its limit.
"""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from engine.sampling.mirostat import mirostat_keep
from engine.sampling.random import gumbel_all, gumbel_at
from engine.sampling.thresholds import (
    NEGATIVE_BITS,
    WEIGHT_BITS,
    descending,
    mass_cut,
    order_bits,
    rank_cut,
)

LOWEST = -3.0e38
"""Stands in for the maximum of a row whose every logit is -inf, so that no NaN comes up."""

LEAST_TEMPERATURE = 1e-30
"""Temperatures below it act as it: it is a normal float32, so dividing by it is exact and safe."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Which stages are built, and how wide; equal values mean the same graph."""

    candidates: int | None
    """Narrow width; None is wide."""
    largest_top_k: int = 0
    greedy_rows: bool = False
    """Whether some rows take the argmax instead of a draw."""
    top_n_sigma: bool = False
    typical: bool = False
    top_p: bool = False
    min_p: bool = False
    largest_min_keep: int = 0
    xtc: bool = False
    dynamic: bool = False
    """Dynamic temperature."""
    mirostat: bool = False
    mirostat_v1: bool = False


class StageParams(NamedTuple):
    """The parameters of the built stages: [R, 1] each, None where the stage is not built."""

    temperature: mx.array
    """float32, above 0."""
    greedy: mx.array | None = None
    """bool."""
    top_n_sigma: mx.array | None = None
    """float32; infinite is off."""
    top_k: mx.array | None = None
    """int32; 0 is off."""
    typical_p: mx.array | None = None
    """float32; 2 is off (a mass of exactly 1 would let rounding drop the tail)."""
    top_p: mx.array | None = None
    """float32, above 0; 2 is off."""
    log_min_p: mx.array | None = None
    """float32; -inf is off."""
    min_keep: mx.array | None = None
    """int32; 0 is off."""
    spread: mx.array | None = None
    """float32: dynamic temperature reaches from temperature - spread to + spread."""
    exponent: mx.array | None = None
    """float32."""
    mirostat: mx.array | None = None
    """int32: 0, 1 or 2."""


class StepParams(NamedTuple):
    """Parameters that change with every step: [R, 1] each, None where not used."""

    xtc_threshold: mx.array | None = None
    """float32; 2 where the row's gate stayed shut."""
    mu: mx.array | None = None
    """float32, bits."""


class Drawn(NamedTuple):
    """What the chain gives."""

    tokens: mx.array
    """int32[R]."""
    kept_logprob: mx.array | None
    """float32[R]: natural-log probability of the token among what was kept and tempered; only
    when mirostat is built."""


class KeptTokens:
    """The candidates that are left, and their weights: the state that the filters narrow."""

    def __init__(self, logits: mx.array, *, is_sorted: bool) -> None:
        self.logits = logits
        """float32[R, N]; a dropped entry is -inf."""
        self.is_sorted = is_sorted
        """Whether the entries came largest first (dropped ones leave holes)."""
        self.peak = mx.maximum(logits.max(axis=-1, keepdims=True), LOWEST)
        """float32[R, 1]. It stays the origin when the best entry is dropped (XTC, typical-p)."""
        self._weights: mx.array | None = None
        self._total: mx.array | None = None

    @property
    def weights(self) -> mx.array:
        """float32[R, N]: exp(logit - peak), 0 where dropped."""
        if self._weights is None:
            self._weights = mx.exp(self.logits - self.peak)
        return self._weights

    def total(self) -> mx.array:
        """float32[R, 1]: the weight of everything kept."""
        if self._total is None:
            self._total = self.weights.sum(axis=-1, keepdims=True)
        return self._total

    def logprobs(self) -> mx.array:
        """float32[R, N]: renormalised over what is kept; -inf where dropped."""
        return self.logits - self.peak - mx.log(self.total())

    def entropy(self, logprobs: mx.array) -> mx.array:
        """float32[R, 1], in nats."""
        terms = self.weights * mx.maximum(logprobs, LOWEST)
        return -terms.sum(axis=-1, keepdims=True) / self.total()

    def alive(self) -> mx.array:
        """bool[R, N]: what is kept."""
        return self.logits > -mx.inf

    def keep(self, mask: mx.array) -> None:
        """Drop the entries where ``mask`` (bool[R, N]) is false."""
        self.logits = mx.where(mask, self.logits, -mx.inf)
        self._total = None
        if self._weights is not None:
            self._weights = mx.where(mask, self._weights, 0.0)


def run_chain(
    stages: Stages, logits: mx.array, keys: mx.array, steps: StepParams, params: StageParams
) -> Drawn:
    """Choose one token a row.

    Args:
        stages: what is built.
        logits: float32[R, V], biased and penalised.
        keys: uint32[R, 2], the noise of each row's draw.
        steps: parameters that change with every step.
        params: parameters that stay.

    Returns:
        Lazy arrays; nothing is read.
    """
    kept, ids = truncate(stages, logits, steps, params)
    tempered = (kept.logits - kept.peak) / _temperature(stages, kept, params)
    if stages.mirostat:
        assert params.mirostat is not None
        assert steps.mu is not None
        keep = mirostat_keep(tempered, steps.mu, params.mirostat, with_v1=stages.mirostat_v1)
        tempered = mx.where(keep, tempered, -mx.inf)
    noise = gumbel_all(keys, logits.shape[-1]) if ids is None else gumbel_at(keys, ids)
    slot = mx.argmax(tempered + noise, axis=-1, keepdims=True)
    if stages.greedy_rows:
        assert params.greedy is not None
        # The best candidate by value, lowest id first: argmax of all logits, so that ties at the
        # top fall as they do for a row alone.
        best = mx.argmax(logits, axis=-1, keepdims=True).astype(mx.int32)
        drawn = slot if ids is None else mx.take_along_axis(ids, slot, axis=-1)
        tokens = mx.where(params.greedy, best, drawn.astype(mx.int32))
    else:
        tokens = slot if ids is None else mx.take_along_axis(ids, slot, axis=-1)
    logprob = None
    if stages.mirostat:
        chosen = mx.take_along_axis(tempered, slot, axis=-1)
        logprob = (chosen - mx.logsumexp(tempered, axis=-1, keepdims=True)).squeeze(-1)
    return Drawn(tokens.astype(mx.int32).squeeze(-1), logprob)


def truncate(
    stages: Stages, logits: mx.array, steps: StepParams, params: StageParams
) -> tuple[KeptTokens, mx.array | None]:
    """Run the filters.

    Args:
        stages: what is built.
        logits: float32[R, V], biased and penalised.
        steps: parameters that change with every step.
        params: parameters that stay.

    Returns:
        What is kept, and the token ids int32[R, N] of its entries; None when entry i is token i.
    """
    if stages.candidates is None:
        kept, ids = KeptTokens(logits, is_sorted=False), None
    else:
        values, ids = descending(logits, stages.candidates)
        kept = KeptTokens(values, is_sorted=True)
    _cut_by_rank(stages, kept, logits, params)
    _cut_by_mass(stages, kept, params)
    if stages.xtc:
        assert steps.xtc_threshold is not None
        _exclude_top(stages, kept, steps.xtc_threshold, params)
    return kept, ids


def _cut_by_rank(stages: Stages, kept: KeptTokens, logits: mx.array, params: StageParams) -> None:
    """Top-n-sigma and top-k, which look at logits only."""
    if stages.top_n_sigma:
        assert params.top_n_sigma is not None
        floor = _sigma_floor(logits, params.top_n_sigma)
        # KeptTokens below the floor must not weigh in; the best candidate is never below it.
        kept.keep(kept.logits >= floor)
    if stages.largest_top_k:
        assert params.top_k is not None
        if kept.is_sorted:
            last = mx.take_along_axis(kept.logits, mx.maximum(params.top_k - 1, 0), axis=-1)
            kept.keep(kept.logits >= last)
        else:
            kept.keep(rank_cut(kept.logits, params.top_k, stages.largest_top_k))


def _sigma_floor(logits: mx.array, n: mx.array) -> mx.array:
    """float32[R, 1]: max - n standard deviations of the finite logits."""
    finite = logits > -mx.inf
    count = mx.maximum(finite.sum(axis=-1, keepdims=True), 1)
    mean = mx.where(finite, logits, 0.0).sum(axis=-1, keepdims=True) / count
    square = mx.where(finite, mx.square(logits - mean), 0.0).sum(axis=-1, keepdims=True)
    deviation = mx.sqrt(square / count)
    peak = logits.max(axis=-1, keepdims=True)
    return mx.where(n < mx.inf, peak - mx.minimum(n, -LOWEST) * deviation, -mx.inf)


def _cut_by_mass(stages: Stages, kept: KeptTokens, params: StageParams) -> None:
    """Typical-p, top-p and min-p, each on what the one before it kept."""
    if stages.typical:
        assert params.typical_p is not None
        logprobs = kept.logprobs()
        surprise = mx.abs(logprobs + kept.entropy(logprobs))
        score = mx.where(kept.alive(), -surprise, -mx.inf)
        _keep_mass(stages, kept, score, params.typical_p, params.min_keep)
    if stages.top_p:
        assert params.top_p is not None
        _keep_mass(stages, kept, None, params.top_p, params.min_keep)
    if stages.min_p:
        assert params.log_min_p is not None
        best = mx.maximum(kept.logits.max(axis=-1, keepdims=True), LOWEST)
        mask = kept.logits >= best + params.log_min_p
        if stages.largest_min_keep:
            assert params.min_keep is not None
            mask = mask | _rank_mask(stages, kept.logits, params.min_keep)
        kept.keep(mask)


def _keep_mass(
    stages: Stages,
    kept: KeptTokens,
    score: mx.array | None,
    mass: mx.array,
    min_keep: mx.array | None,
) -> None:
    """Keep the entries whose better ones weigh less than ``mass`` of all that is kept.

    ``score`` (float32[R, N], at most 0) says which is better; None: the larger logit.
    """
    limit = mass * kept.total()
    if kept.is_sorted:
        mask = _sorted_mass_mask(kept, score, limit)
    elif score is None:
        # Larger logits have larger weights, whose bits are in order as they are.
        bits = kept.weights.view(mx.uint32)
        mask = bits >= mass_cut(bits, kept.weights, limit, among=WEIGHT_BITS)
    else:
        bits = order_bits(score)
        mask = bits >= mass_cut(bits, kept.weights, limit, among=NEGATIVE_BITS)
    if stages.largest_min_keep:
        assert min_keep is not None
        mask = mask | _rank_mask(stages, kept.logits if score is None else score, min_keep)
    kept.keep(mask)


def _sorted_mass_mask(kept: KeptTokens, score: mx.array | None, limit: mx.array) -> mx.array:
    """bool[R, K]: ``_keep_mass`` on entries that came largest first."""
    value, weights = kept.logits, kept.weights
    if score is not None:
        order = mx.argsort(-score, axis=-1)
        value = mx.take_along_axis(score, order, axis=-1)
        weights = mx.take_along_axis(weights, order, axis=-1)
    before = mx.cumsum(weights, axis=-1, inclusive=False)
    inside = (before < limit) & (value > -mx.inf)
    last = mx.where(inside, value, mx.inf).min(axis=-1, keepdims=True)
    return (kept.logits if score is None else score) >= last


def _rank_mask(stages: Stages, score: mx.array, min_keep: mx.array) -> mx.array:
    """bool[R, N]: the ``min_keep`` best entries; none where it is 0."""
    largest = min(stages.largest_min_keep, score.shape[-1])
    return rank_cut(score, min_keep, largest) & (min_keep > 0)


def _exclude_top(
    stages: Stages, kept: KeptTokens, threshold: mx.array, params: StageParams
) -> None:
    """XTC: of the entries at or above the threshold only the least probable stays."""
    above = (kept.weights >= threshold * kept.total()) & kept.alive()
    least = mx.where(above, kept.logits, mx.inf).min(axis=-1, keepdims=True)
    mask = kept.logits <= least
    if stages.largest_min_keep:
        assert params.min_keep is not None
        left = (mask & kept.alive()).sum(axis=-1, keepdims=True)
        mask = mask | (left < params.min_keep)
    kept.keep(mask)


def _temperature(stages: Stages, kept: KeptTokens, params: StageParams) -> mx.array:
    """float32[R, 1], above 0; dynamic rows' follows the entropy of what is kept (llama.cpp)."""
    if not stages.dynamic:
        return params.temperature
    assert params.spread is not None
    assert params.exponent is not None
    count = kept.alive().sum(axis=-1, keepdims=True)
    most = mx.log(mx.maximum(count, 2).astype(mx.float32))
    share = mx.maximum(kept.entropy(kept.logprobs()) / most, 0.0)
    low = mx.maximum(params.temperature - params.spread, 0.0)
    span = params.temperature + params.spread - low
    return mx.maximum(low + span * mx.power(share, params.exponent), LEAST_TEMPERATURE)
