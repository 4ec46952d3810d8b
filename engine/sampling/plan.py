"""One draw for a whole batch: what is fixed while its rows stay the same, and the draw itself.

Nothing here reads the device: a draw is lazy, and the engine decides when its arrays are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from engine.outcome import TokenLogprobs
from engine.sampling.adjustments import Adjustment, Uploaded, adjust, upload_adjustments
from engine.sampling.chain import (
    LEAST_TEMPERATURE,
    Drawn,
    StageParams,
    Stages,
    StepParams,
    run_chain,
)
from engine.sampling.dry import DryHistory
from engine.sampling.logprobs import LogprobRows, finite, measure_logprobs, read_logprobs
from engine.sampling.penalties import PenaltyWindow, penalise, upload_windows
from engine.sampling.random import gumbel_all
from engine.sampling.row_sampler import RowSampler
from engine.sampling.stage_params import (
    chain_stages,
    logprob_rows,
    penalty_params,
    stage_params,
    step_params,
)

LOW_BITS = 0xFFFFFFFF

Program = Callable[..., tuple[mx.array, ...]]
"""A compiled chain: (logits, keys, steps, params) to its arrays."""


@dataclass(frozen=True, slots=True)
class DrawRow:
    """One row of a draw."""

    sampler: RowSampler | None
    """None is an inactive row: its token means nothing."""
    position: int = 0
    """Absolute index of the token to draw, in prompt + answer."""
    ids: Sequence[int] = ()
    """Prompt + answer, at least up to ``position - 1``; up to ``position`` when the sampler needs
    the host. Behind the first row of a verify round they hold the draft."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A lazy draw."""

    tokens: mx.array
    """int32[R]."""
    is_usable: mx.array
    """bool[R]: whether the row's scores allowed a token: no NaN among them, and not all banned."""
    feedback: mx.array | None = None
    """float32[R], natural log: what mirostat rows observe."""
    logprobs: tuple[mx.array, ...] = ()
    logprob_rows: LogprobRows | None = None
    """Which rows the logprobs are of."""

    def readable(self) -> mx.array:
        """int32[R]: the tokens, -1 where the row's scores were not usable."""
        return mx.where(self.is_usable, self.tokens, -1)

    def arrays(self) -> tuple[mx.array, ...]:
        """Everything to evaluate and then to read, in the order ``read_draw`` takes it."""
        feedback = () if self.feedback is None else (self.feedback,)
        return (self.tokens, *feedback, *self.logprobs)


@dataclass(frozen=True, slots=True)
class DrawReading:
    """A draw as plain values."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    """Of each row; None where it wants none."""
    feedback: tuple[float | None, ...]
    """For ``RowSampler.observe``."""


class ChainPrograms:
    """Compiled chains by stage set, for one thread (MLX's compiled functions belong to one).

    Parameters enter as arrays, so a stage set at one shape is traced once, whatever the values.
    On a CPU leave it out: MLX builds each fused kernel with the C++ compiler, about 0.5 s.
    """

    def __init__(self) -> None:
        self._programs: dict[Stages, Program] = {}

    def __len__(self) -> int:
        """Stage sets that were compiled."""
        return len(self._programs)

    def of(self, stages: Stages) -> Program:
        """The compiled chain of a stage set."""
        program = self._programs.get(stages)
        if program is None:
            program = self._programs[stages] = mx.compile(partial(_flat_chain, stages))
        return program


class DrawPlan:
    """What a draw of certain rows needs and does not change from step to step.

    Make one per composition of the batch and use it as long as the rows stay the same.
    """

    __slots__ = (
        "_fixed",
        "_program",
        "is_plain_greedy",
        "logprob_rows",
        "needs_host",
        "params",
        "penalties",
        "samplers",
        "stages",
    )

    def __init__(
        self, samplers: Sequence[RowSampler | None], programs: ChainPrograms | None = None
    ) -> None:
        self.samplers = tuple(samplers)
        rows = [sampler for sampler in self.samplers if sampler is not None]
        self.needs_host = any(sampler.needs_host for sampler in rows)
        """Whether the draw must wait for the tokens before it to be read."""
        self.is_plain_greedy = all(sampler.is_plain_greedy for sampler in rows)
        """Whether the draw is the argmax of the logits and nothing else."""
        self.logprob_rows = logprob_rows(self.samplers)
        self.penalties = penalty_params(self.samplers)
        self.stages = chain_stages(self.samplers)
        """None: every row takes its best token, no chain is built."""
        self.params = None if self.stages is None else stage_params(self.samplers, self.stages)
        self._program = None
        if programs is not None and self.stages is not None:
            self._program = programs.of(self.stages)
        self._fixed: dict[tuple[bool, ...], Uploaded | None] = {}

    def fixed_adjustments(self, rows: Sequence[DrawRow]) -> Uploaded | None:
        """Biases and suppressed end tokens, uploaded once per state of ``min_tokens``."""
        early = tuple(
            row.sampler is not None and row.sampler.suppresses(row.position) for row in rows
        )
        if early not in self._fixed:
            self._fixed[early] = upload_adjustments(
                [
                    None if sampler is None else sampler.adjustment(suppressed=suppressed)
                    for sampler, suppressed in zip(self.samplers, early, strict=True)
                ]
            )
        return self._fixed[early]

    def choose(self, logits: mx.array, rows: Sequence[DrawRow]) -> Drawn:
        """Run the chain on adjusted logits, float32[R, V]."""
        if self.stages is None or self.params is None:
            return Drawn(mx.argmax(logits, axis=-1).astype(mx.int32), None)
        keys = _noise_keys(rows)
        steps = step_params(self.stages, self.samplers, [row.position for row in rows])
        if self._program is None:
            return run_chain(self.stages, logits, keys, steps, self.params)
        arrays = self._program(logits, keys, tuple(steps), tuple(self.params))
        return Drawn(arrays[0], arrays[1] if len(arrays) > 1 else None)


def draw(plan: DrawPlan, rows: Sequence[DrawRow], logits: mx.array, newest: mx.array) -> Draw:
    """Draw one token a row; lazy.

    Args:
        plan: made for exactly these samplers, in this order.
        rows: positions and ids. Rows of one verify round are consecutive, share a sampler and
            have consecutive positions.
        logits: float[R, V], any dtype.
        newest: int32[R], the token before each position; may be lazy. Only penalties look at it.

    Returns:
        The tokens, and what else the rows ask for.
    """
    if plan.is_plain_greedy:
        scores = logits
        drawn = Drawn(mx.argmax(logits, axis=-1).astype(mx.int32), None)
    else:
        scores = _adjusted(plan, rows, logits, newest)
        drawn = plan.choose(scores, rows)
    is_usable = _is_usable(logits, scores, drawn.tokens)
    if plan.logprob_rows is None:
        return Draw(drawn.tokens, is_usable, drawn.kept_logprob)
    logprobs = measure_logprobs(plan.logprob_rows, logits, drawn.tokens)
    return Draw(drawn.tokens, is_usable, drawn.kept_logprob, logprobs, plan.logprob_rows)


def _is_usable(logits: mx.array, scores: mx.array, tokens: mx.array) -> mx.array:
    """bool[R]; the largest score is NaN where any is, and -inf where every token is banned."""
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return (scores.max(axis=-1) > -mx.inf) & mx.isfinite(chosen)


def token_scores(sampler: RowSampler, ids: Sequence[int], logits: mx.array) -> mx.array:
    """The scores whose largest is the token after ``ids``; differences are in logits.

    Args:
        sampler: the row's; without filters (top-k and the like), mirostat and dynamic temperature.
        ids: prompt and answer so far.
        logits: float[V], the model's.

    Returns:
        float32[V]: logits with biases, penalties and DRY; of a row that draws, also with the
        position's noise, at the scale of the logits.
    """
    row = DrawRow(sampler, len(ids), ids)
    newest = mx.array([ids[-1]], mx.int32)
    scores = _adjusted(DrawPlan([sampler]), [row], logits[None], newest)
    if sampler.is_greedy:
        return scores[0]
    noise = gumbel_all(_noise_keys([row]), sampler.vocab_size)
    return (scores + max(sampler.params.temperature, LEAST_TEMPERATURE) * noise)[0]


def read_draw(drawn: Draw, values: Sequence[Sequence[Any]]) -> DrawReading:
    """A draw as plain values.

    Args:
        drawn: what ``draw`` gave.
        values: ``drawn.arrays()`` after the engine's guarded read: nested lists or NumPy arrays.
    """
    tokens = tuple(int(token) for token in values[0])
    rest = list(values[1:])
    feedback: tuple[float | None, ...] = (None,) * len(tokens)
    if drawn.feedback is not None:
        feedback = tuple(finite(value) for value in rest.pop(0))
    logprobs: dict[int, TokenLogprobs] = {}
    if drawn.logprob_rows is not None:
        logprobs = read_logprobs(drawn.logprob_rows, tokens, rest)
    return DrawReading(tokens, tuple(logprobs.get(row) for row in range(len(tokens))), feedback)


def _adjusted(
    plan: DrawPlan, rows: Sequence[DrawRow], logits: mx.array, newest: mx.array
) -> mx.array:
    """float32[R, V]: logits with biases, penalties and DRY, as the chain takes them."""
    adjusted = logits.astype(mx.float32)
    fixed = plan.fixed_adjustments(rows)
    if fixed is not None:
        adjusted = adjust(adjusted, fixed)
    if plan.penalties is not None:
        window = upload_windows(_windows(rows))
        adjusted = penalise(adjusted, newest=newest, window=window, params=plan.penalties)
    if plan.needs_host:
        repeats = upload_adjustments(_dry_penalties(rows))
        if repeats is not None:
            adjusted = adjust(adjusted, repeats)
    return adjusted


def _noise_keys(rows: Sequence[DrawRow]) -> mx.array:
    """uint32[R, 2]: what the noise of each row's draw is made of."""
    keys = [0 if row.sampler is None else row.sampler.token_key(row.position) for row in rows]
    return mx.array([[key & LOW_BITS, key >> 32] for key in keys], mx.uint32)


def _windows(rows: Sequence[DrawRow]) -> list[PenaltyWindow | None]:
    """Each row's window up to the token before its newest; drafts leave samplers untouched."""
    windows: list[PenaltyWindow | None] = []
    before: RowSampler | None = None
    for row in rows:
        if row.sampler is None or row.sampler.window is None:
            windows.append(None)
        elif row.sampler is before and windows[-1] is not None:
            ahead = windows[-1].copy()
            ahead.extend(row.ids, row.position - 1)
            windows.append(ahead)
        else:
            row.sampler.advance(row.ids, row.position - 1)
            windows.append(row.sampler.window)
        before = row.sampler
    return windows


def _dry_penalties(rows: Sequence[DrawRow]) -> list[Adjustment | None]:
    """What DRY adds to each row; drafts leave samplers untouched."""
    penalties: list[Adjustment | None] = []
    before: RowSampler | None = None
    history: DryHistory | None = None
    for row in rows:
        if row.sampler is None or row.sampler.dry is None:
            penalties.append(None)
            history = None
        else:
            ahead = row.sampler is before and history is not None
            history = history.copy() if ahead and history is not None else row.sampler.dry
            history.extend(row.ids, row.position)
            penalties.append(history.penalties())
        before = row.sampler
    return penalties


def _flat_chain(
    stages: Stages,
    logits: mx.array,
    keys: mx.array,
    steps: tuple[mx.array | None, ...],
    params: tuple[mx.array, ...],
) -> tuple[mx.array, ...]:
    drawn = run_chain(stages, logits, keys, StepParams(*steps), StageParams(*params))
    if drawn.kept_logprob is None:
        return (drawn.tokens,)
    return drawn.tokens, drawn.kept_logprob
