"""From the samplers of a batch to the stages that are built and the arrays that feed them."""

import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

import mlx.core as mx

from engine.sampling.chain import LEAST_TEMPERATURE, StageParams, Stages, StepParams
from engine.sampling.logprobs import LogprobRows
from engine.sampling.penalties import PenaltyParams
from engine.sampling.row_sampler import SHUT_GATE, RowSampler

CANDIDATES = (64, 256, 1280)
"""Narrow widths. A width serves top-k up to four fifths of it: room for tokens that tie with the
last kept one."""

KEEP_ALL = 2.0
"""A probability mass that is never reached."""

Samplers = Sequence[RowSampler | None]


def chain_stages(samplers: Samplers) -> Stages | None:
    """The stages these rows need; None when each takes its best token."""
    rows = [sampler for sampler in samplers if sampler is not None]
    drawing = [row for row in rows if not row.is_greedy]
    feedback = [row for row in rows if row.params.has_feedback]
    if not drawing and not feedback:
        return None
    filtering = [row for row in drawing if not row.params.has_feedback]
    params = [row.params for row in filtering]
    return Stages(
        candidates=_candidates(drawing) if not feedback else None,
        largest_top_k=max((row.top_k for row in filtering), default=0),
        greedy_rows=len(drawing) < len(rows),
        top_n_sigma=any(one.top_n_sigma > 0 for one in params),
        typical=any(one.typical_p < 1 for one in params),
        top_p=any(one.top_p < 1 for one in params),
        min_p=any(one.min_p > 0 for one in params),
        largest_min_keep=max((one.min_keep for one in params), default=0),
        xtc=any(row.has_xtc for row in filtering),
        dynamic=any(one.dynatemp_range > 0 for one in params),
        mirostat=bool(feedback),
        mirostat_v1=any(row.params.mirostat == 1 for row in feedback),
    )


def stage_params(samplers: Samplers, stages: Stages) -> StageParams:
    """The parameter arrays of the built stages; rows without a stage get its keep-all value."""

    def floats(value: Callable[[RowSampler], float], off: float, *, built: bool) -> mx.array | None:
        return (
            _column([value(row) if _filters(row) else off for row in samplers]) if built else None
        )

    return StageParams(
        temperature=_column([_temperature(row) for row in samplers]),
        greedy=_greedy(samplers) if stages.greedy_rows else None,
        top_n_sigma=floats(
            lambda row: row.params.top_n_sigma if row.params.top_n_sigma > 0 else math.inf,
            math.inf,
            built=stages.top_n_sigma,
        ),
        top_k=_ranks([row.top_k if _filters(row) else 0 for row in samplers])
        if stages.largest_top_k
        else None,
        typical_p=floats(lambda row: _mass(row.params.typical_p), KEEP_ALL, built=stages.typical),
        top_p=floats(lambda row: _mass(row.params.top_p), KEEP_ALL, built=stages.top_p),
        log_min_p=floats(lambda row: _log(row.params.min_p), -math.inf, built=stages.min_p),
        min_keep=_ranks([row.params.min_keep if _filters(row) else 0 for row in samplers])
        if stages.largest_min_keep
        else None,
        spread=floats(lambda row: row.params.dynatemp_range, 0, built=stages.dynamic),
        exponent=floats(lambda row: row.params.dynatemp_exponent, 1, built=stages.dynamic),
        mirostat=_ranks([0 if row is None else row.params.mirostat for row in samplers])
        if stages.mirostat
        else None,
    )


def step_params(stages: Stages, samplers: Samplers, positions: Sequence[int]) -> StepParams:
    """The parameters that follow from each row's position and feedback."""
    thresholds = mu = None
    if stages.xtc:
        thresholds = _column(
            [
                row.xtc_threshold(position) if _filters(row) else SHUT_GATE
                for row, position in zip(samplers, positions, strict=True)
            ]
        )
    if stages.mirostat:
        mu = _column([0.0 if row is None else row.mu for row in samplers])
    return StepParams(thresholds, mu)


def penalty_params(samplers: Samplers) -> PenaltyParams | None:
    """The strengths of the penalties; None when no row has any."""
    rows = [None if row is None or row.window is None else row.params for row in samplers]
    if not any(rows):
        return None
    return PenaltyParams(
        repetition=_column([1.0 if one is None else one.repetition_penalty for one in rows]),
        frequency=_column([0.0 if one is None else one.frequency_penalty for one in rows]),
        presence=_column([0.0 if one is None else one.presence_penalty for one in rows]),
    )


def logprob_rows(samplers: Samplers) -> LogprobRows | None:
    """The rows that want logprobs; None when none does."""
    top = {
        index: row.params.logprobs
        for index, row in enumerate(samplers)
        if row is not None and row.params.logprobs is not None
    }
    if not top:
        return None
    return LogprobRows(tuple(top), tuple(top.values()), mx.array(list(top), mx.int32))


def _filters(row: RowSampler | None) -> TypeGuard[RowSampler]:
    """Whether a row goes through the truncation stages."""
    return row is not None and not row.is_greedy and not row.params.has_feedback


def _candidates(drawing: Sequence[RowSampler]) -> int | None:
    """The narrow width that serves every drawing row, or None."""
    largest = max(row.top_k for row in drawing)
    if not all(row.top_k for row in drawing):
        return None
    vocab_size = drawing[0].vocab_size
    fitting = (width for width in CANDIDATES if largest + largest // 4 <= width)
    width = next(fitting, None)
    return None if width is None else min(width, vocab_size)


def _temperature(row: RowSampler | None) -> float:
    if row is None or row.is_greedy:
        return 1.0
    return max(row.params.temperature, LEAST_TEMPERATURE)


def _mass(share: float) -> float:
    """0 keeps one token; 1 keeps all, whatever rounding says."""
    return KEEP_ALL if share >= 1 else max(share, 1e-9)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _greedy(samplers: Samplers) -> mx.array:
    return mx.array([[row is None or row.is_greedy] for row in samplers])


def _column(values: Sequence[float]) -> mx.array:
    return mx.array([[value] for value in values], mx.float32)


def _ranks(values: Sequence[int]) -> mx.array:
    return mx.array([[value] for value in values], mx.int32)
