"""The engine thread's side of `mlxcel bench`: loads a model and measures it.

Whatever imports MLX is imported inside the functions: the BLAS has to be chosen before.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from engine.models.progress import Progress
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.bench.results import ARMS, PLAIN, ArmRun, Setup, WidthTable
from mlxcel_cli.bench.tasks import TASKS, Task
from mlxcel_cli.config import silence_advice
from mlxcel_cli.engine_backend import choose_blas, measured_on
from mlxcel_cli.engine_thread import Emit
from mlxcel_cli.width_costs import WidthCostsFile

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.session import Answer
    from mlxcel_cli.model_loading import ReadyModel

PROMPT_TOKENS = 300
PIPELINED_STEPS = 4
WARM_TOKENS = 16

BenchEvent = Setup | WidthTable | ArmRun | Progress


@dataclass(frozen=True, slots=True)
class WidthsPlan:
    """What ``verify-width`` measures."""

    model: ModelRequest
    max_draft: int
    repeats: int


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """What ``lookup`` measures."""

    model: ModelRequest
    repetitions: int
    tokens: int | None
    """Most tokens of every answer; None: each task's own."""
    max_draft: int


def measured_widths(plan: WidthsPlan, emit: Emit[BenchEvent]) -> Iterator[BenchEvent]:
    """The setup, then the table, whose costs prompt lookup uses from then on.

    Raises:
        EngineError: the model cannot be had, or a forward failed.
    """
    with loaded_model(plan.model, emit) as (ready, blas, setup):
        yield setup
        from engine.lookup.warm_up import every_width
        from engine.lookup.widths import WidthCosts

        table = width_table(
            ready.engine,
            _some_ids(ready),
            widths=every_width(plan.max_draft),
            repeats=plan.repeats,
            report=lambda done: emit(Progress("measuring", done, plan.repeats)),
        )
        kept = WidthCostsFile(plan.model.settings.cache_home, measured_on(ready, blas))
        kept.save(
            WidthCosts.from_seconds(
                dict(table.seconds), step_seconds=table.step_s, max_width=plan.max_draft + 1
            )
        )
        yield WidthTable(table.prompt_tokens, table.repeats, table.step_s, table.seconds, kept.path)


def width_table(
    engine: "Engine",
    prompt_ids: tuple[int, ...],
    *,
    widths: list[int],
    repeats: int,
    report: Callable[[int], object] = bool,
) -> WidthTable:
    """Medians of ``repeats`` forwards of each width, taken in turn.

    Raises:
        EngineError: a forward failed.
    """
    from engine.prefill import plan_prefill

    drafting = engine.drafting
    seq = engine.open(SequenceParams(prompt_ids))
    try:
        for piece in plan_prefill(prompt_tokens=len(prompt_ids)):
            if not piece.is_last:
                engine.prefill(seq, piece)
        steps: list[float] = []
        seconds: dict[int, list[float]] = {width: [] for width in widths}

        def timed(forwards: int, width: int) -> float:
            started = time.perf_counter()
            for place in range(forwards):
                drafting.forward_width(seq, width, wait=place == forwards - 1)
            spent = time.perf_counter() - started
            drafting.rewind(seq, forwards * width)
            return spent / forwards

        for turn in range(repeats + 1):
            step = timed(PIPELINED_STEPS, 1)
            spent_by_width = {width: timed(1, width) for width in widths}
            if turn:  # the first one builds kernels
                steps.append(step)
                for width, spent in spent_by_width.items():
                    seconds[width].append(spent)
            report(turn)
    finally:
        engine.close(seq)
    medians = tuple((width, median(spent)) for width, spent in seconds.items())
    return WidthTable(len(prompt_ids), repeats, median(steps), medians)


def measured_lookup(plan: LookupPlan, emit: Emit[BenchEvent]) -> Iterator[BenchEvent]:
    """The setup, then every run of every arm.

    Raises:
        EngineError: the model cannot be had or is not eligible, or a forward failed.
    """
    with loaded_model(plan.model, emit) as (ready, blas, setup):
        yield setup
        kept = WidthCostsFile(plan.model.settings.cache_home, measured_on(ready, blas))
        if ready.device == "cpu":
            ready.session.width_costs = kept.load(plan.max_draft)
        for arm in ARMS:  # uncounted: kernels, caches, and costs that were not kept
            answer_task(ready, TASKS[0], arm, tokens=WARM_TOKENS, max_draft=plan.max_draft)
        for repetition in range(plan.repetitions):
            for task in TASKS:
                tokens = task.tokens if plan.tokens is None else plan.tokens
                for arm in turned(ARMS, repetition):
                    yield run_arm(ready, task, arm, repetition, tokens, plan.max_draft)


def run_arm(
    ready: "ReadyModel", task: Task, arm: str, repetition: int, tokens: int, max_draft: int
) -> ArmRun:
    """One answer of one arm, with its figures.

    Raises:
        EngineError: the model or the context is not eligible, or a forward failed.
    """
    started = time.perf_counter()
    answer = answer_task(ready, task, arm, tokens=tokens, max_draft=max_draft)
    whole_s = time.perf_counter() - started
    return ArmRun(
        task=task.name,
        arm=arm,
        repetition=repetition,
        copies=task.copies,
        tokens=answer.usage.completion_tokens,
        per_second=answer.timings.predicted_per_second,
        whole_per_second=answer.usage.completion_tokens / whole_s,
        text=answer.text,
        lookup=answer.lookup,
    )


def answer_task(
    ready: "ReadyModel", task: Task, arm: str, *, tokens: int, max_draft: int
) -> "Answer":
    """A task's answer; the text is the same for every arm."""
    speculation = None
    if arm != PLAIN:
        speculation = SpeculationParams(max_draft=max_draft, policy=LookupPolicy(arm))
    params = SequenceParams(
        prompt_ids=ready.loaded.tokenizer.encode(task.prompt, add_bos=True),
        sampling=SamplingParams(temperature=task.temperature, seed=task.seed),
        max_tokens=tokens,
        speculation=speculation,
    )
    *_, answer = ready.session.generate(params)
    return answer  # type: ignore[return-value]  # the last event always is


def turned(arms: tuple[str, ...], by: int) -> tuple[str, ...]:
    """The arms, beginning with another one each time."""
    first = by % len(arms)
    return arms[first:] + arms[:first]


def _some_ids(ready: "ReadyModel") -> tuple[int, ...]:
    text = "".join(task.prompt for task in TASKS)
    ids = ready.loaded.tokenizer.encode(text, add_bos=True)
    return tuple(ids[: min(PROMPT_TOKENS, ready.engine.context_tokens // 2)])


@contextmanager
def loaded_model(
    request: ModelRequest, emit: Emit[BenchEvent]
) -> "Iterator[tuple[ReadyModel, str, Setup]]":
    """A model to measure, the BLAS it runs on, and what is told of both."""
    silence_advice(os.environ)
    notes, warnings = choose_blas(request)
    from mlxcel_cli.model_loading import load_model

    ready = load_model(request, emit)
    try:
        name = ready.loaded.facts.name
        setup = Setup(name, ready.device, (*ready.notes, *notes), warnings)
        yield ready, (notes[0] if notes else ""), setup
    finally:
        ready.held.close()
