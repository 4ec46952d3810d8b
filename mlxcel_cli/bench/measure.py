"""The engine thread's side of `mlxcel bench`: loads a model and measures it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from engine.engine import Engine
from engine.errors import InvalidParams
from engine.events import Delta, Done, PrefillProgress, Started
from engine.loading import OpenedModel
from engine.lookup.warm_up import every_width, time_widths
from engine.lookup.widths import WidthCosts
from engine.models.progress import Progress
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from engine.prefill import plan_prefill
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.bench.results import PLAIN, VARIANTS, Setup, VariantRun, WidthTable
from mlxcel_cli.bench.tasks import TASKS, Task
from mlxcel_cli.config import silence_advice
from mlxcel_cli.engine_thread import Emit
from mlxcel_cli.model_loading import load_model

PROMPT_TOKENS = 300
WARM_TOKENS = 16

BenchEvent = Setup | WidthTable | VariantRun | Progress


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
    with loaded_model(plan.model, emit) as (ready, setup):
        yield setup
        table = width_table(
            ready.engine,
            _some_ids(ready),
            widths=every_width(plan.max_draft),
            repeats=plan.repeats,
            report=lambda done: emit(Progress("measuring", done, plan.repeats)),
        )
        kept = ready.widths_file
        kept.save(
            WidthCosts.from_seconds(
                dict(table.seconds), step_seconds=table.step_s, max_width=plan.max_draft + 1
            )
        )
        yield WidthTable(table.prompt_tokens, table.repeats, table.step_s, table.seconds, kept.path)


def width_table(
    engine: Engine,
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
    seq = engine.open(SequenceParams(prompt_ids))
    try:
        for chunk in plan_prefill(prompt_tokens=len(prompt_ids)):
            if not chunk.is_last:
                engine.prefill(seq, chunk)
        steps, seconds = time_widths(
            engine.drafting, seq, widths, time.perf_counter, runs=repeats + 1, report=report
        )
    finally:
        engine.close(seq)
    # The first run builds kernels.
    medians = tuple((width, median(spent[1:])) for width, spent in seconds.items())
    return WidthTable(len(prompt_ids), repeats, median(steps[1:]), medians)


def measured_lookup(plan: LookupPlan, emit: Emit[BenchEvent]) -> Iterator[BenchEvent]:
    """The setup, then every run of every variant.

    Raises:
        EngineError: the model cannot be had or is not eligible, or a forward failed.
    """
    with loaded_model(plan.model, emit) as (ready, setup):
        yield setup
        if ready.device == "cpu":
            ready.session.width_costs = ready.widths_file.load(plan.max_draft)
        for variant in VARIANTS:  # uncounted: kernels, caches, and costs that were not kept
            answer_task(ready, TASKS[0], variant, tokens=WARM_TOKENS, max_draft=plan.max_draft)
        for repetition in range(plan.repetitions):
            for task in TASKS:
                tokens = task.tokens if plan.tokens is None else plan.tokens
                for variant in turned(VARIANTS, repetition):
                    yield run_variant(ready, task, variant, repetition, tokens, plan.max_draft)


def run_variant(
    ready: OpenedModel, task: Task, variant: str, repetition: int, tokens: int, max_draft: int
) -> VariantRun:
    """One answer of one variant, with its figures.

    Raises:
        EngineError: the model or the context is not eligible, or a forward failed.
    """
    started = time.perf_counter()
    text, done = answer_task(ready, task, variant, tokens=tokens, max_draft=max_draft)
    whole_s = time.perf_counter() - started
    return VariantRun(
        task=task.name,
        variant=variant,
        repetition=repetition,
        copies=task.copies,
        tokens=done.usage.completion_tokens,
        per_second=done.timings.predicted_per_second,
        whole_per_second=done.usage.completion_tokens / whole_s,
        text=text,
        lookup=done.lookup,
    )


def answer_task(
    ready: OpenedModel, task: Task, variant: str, *, tokens: int, max_draft: int
) -> tuple[str, Done]:
    """A task's answer and how it ended; the text is the same for every variant.

    Raises:
        EngineError: the model or the context is not eligible, or a forward failed.
    """
    speculation = None
    if variant != PLAIN:
        speculation = SpeculationParams(max_draft=max_draft, policy=LookupPolicy(variant))
    params = SequenceParams(
        prompt_ids=ready.loaded.tokenizer.encode(task.prompt, add_bos=True),
        sampling=SamplingParams(temperature=task.temperature, seed=task.seed),
        max_tokens=tokens,
        speculation=speculation,
    )
    text = ""
    for event in ready.session.generate(params):
        match event:
            case Started(lookup_refused=reason) if reason is not None:
                raise InvalidParams("prompt_lookup", reason.problem)
            case Delta():
                text += event.text
            case Done():
                return text, event
            case Started() | PrefillProgress():
                pass
    raise AssertionError("an answer ends with Done")


def turned(variants: tuple[str, ...], by: int) -> tuple[str, ...]:
    """The variants, beginning with another one each time."""
    first = by % len(variants)
    return variants[first:] + variants[:first]


def _some_ids(ready: OpenedModel) -> tuple[int, ...]:
    text = "".join(task.prompt for task in TASKS)
    ids = ready.loaded.tokenizer.encode(text, add_bos=True)
    return tuple(ids[: min(PROMPT_TOKENS, ready.engine.context_tokens // 2)])


@contextmanager
def loaded_model(
    request: ModelRequest, emit: Emit[BenchEvent]
) -> Iterator[tuple[OpenedModel, Setup]]:
    """A model to measure, and what is shown of it."""
    silence_advice(os.environ)
    ready = load_model(request, emit)
    try:
        yield ready, Setup(ready.loaded.facts.name, ready.device, ready.notes, ready.warnings)
    finally:
        ready.close()
