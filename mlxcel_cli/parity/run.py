"""Runs ``mlxcel parity``: the engine thread compares, this side writes what it found."""

import os
from collections.abc import Iterator, Mapping
from typing import TypeVar

from engine.errors import InvalidParams
from engine.loading import OpenedModel
from engine.models.load import LoadedModel
from engine.models.progress import Progress
from mlxcel_cli.answer_generator import render_prompt
from mlxcel_cli.command_lines import ParityCommand
from mlxcel_cli.config import load_settings, silence_advice
from mlxcel_cli.engine_thread import Emit, EngineThread
from mlxcel_cli.model_loading import load_model
from mlxcel_cli.output import standard_output
from mlxcel_cli.parity import engine_variants as engine
from mlxcel_cli.parity import front_variants as front
from mlxcel_cli.parity.comparison import (
    DECIDED_GAP,
    NEAR_TIE,
    ParityCase,
    ParityRequest,
    Variant,
    compare_forced,
    compare_variants,
    parity_cases,
)
from mlxcel_cli.parity.plan import ParityPlan, plan_parity
from mlxcel_cli.parity.report import Introduction, ParityEvent, ParityReport
from mlxcel_cli.progress_text import progress_text
from mlxcel_cli.prompt_input import PromptInput

T = TypeVar("T")

SAME_VARIANTS = {"scheduler": "engine", "scheduler-lookup": "lookup"}
"""Names that are still accepted: a session is a scheduler of one slot."""

Requests = list[tuple[int, ParityRequest]]


def check_parity(command: ParityCommand) -> int:
    """Compare and report; the exit status is 1 where variants disagree.

    Raises:
        EngineError, OSError: for the program's entry point to report.
    """
    output = standard_output(os.environ)
    settings = load_settings(os.environ, command="parity", config=command.config)
    for warning in settings.warnings:
        output.note(f"mlxcel: {warning}")
    plan = plan_parity(command, settings)
    report = ParityReport(output, as_json=bool(command.json), verbose=bool(command.verbose))
    with EngineThread() as thread, thread.stream(lambda emit: compared(plan, emit)) as events:
        for event in events:
            if isinstance(event, Progress):
                output.progress(progress_text(event))
            else:
                output.clear_progress()
                report.take(event)
    return report.close()


def known_variants() -> Mapping[str, Variant]:
    """Every variant by its name, in order; the others are compared with the first."""
    return {
        "engine": engine.engine_tokens,
        "generate": front.generate_tokens,
        "http": front.http_tokens,
        "sync": engine.sync_tokens,
        "batch": engine.batch_tokens,
        "lookup": engine.lookup_tokens,
        "cached": engine.cached_tokens,
        "restored": engine.restored_tokens,
        "cache-miss": engine.cache_miss_tokens,
        "cache-hit": engine.cache_hit_tokens,
        "mlx-lm": engine.mlx_lm_tokens,
    }


def compared(
    plan: ParityPlan, emit: Emit[Progress | ParityEvent]
) -> Iterator[Progress | ParityEvent]:
    """An introduction and every result, as they come; on the engine thread.

    Raises:
        InvalidParams: a variant or a case of that name there is none.
        EngineError: the model cannot be had, or a variant failed.
    """
    silence_advice(os.environ)
    cases = _chosen("--cases", plan.cases, parity_cases(plan.seed))
    named = tuple(SAME_VARIANTS.get(name, name) for name in plan.variants)
    variants = _chosen("--variants", named, known_variants())
    if plan.teacher_forced:
        cases = {"greedy": parity_cases(plan.seed)["greedy"]}
        variants.pop("mlx-lm", None)
    if len(variants) < 2 - plan.teacher_forced:
        raise InvalidParams("--variants", "name more: there is nothing to compare")
    ready = load_model(plan.model, emit)
    try:
        yield _introduction(plan, ready)
        requests = [
            (number, request)
            for number, prompt in enumerate(plan.prompts, start=1)
            for request in _requests(ready.loaded, prompt, plan, cases)
        ]
        yield from _results(plan, ready.loaded, requests, variants)
    finally:
        ready.close()


def near_tie_gap(plan: ParityPlan, dtype: str) -> float:
    """The widest distance that is no mismatch: the one asked for, else the weights' type's."""
    if plan.gap is not None:
        return plan.gap
    return DECIDED_GAP if plan.teacher_forced else NEAR_TIE.get(dtype, NEAR_TIE["float32"])


def _introduction(plan: ParityPlan, ready: OpenedModel) -> Introduction:
    facts = ready.loaded.facts
    return Introduction(
        model=facts.name,
        dtype=facts.dtype,
        gap=near_tie_gap(plan, facts.dtype),
        seed=plan.seed,
        deterministic=plan.model.settings.machine.deterministic,
        notes=ready.notes,
        warnings=ready.warnings,
    )


def _requests(
    loaded: LoadedModel, prompt: str, plan: ParityPlan, cases: Mapping[str, ParityCase]
) -> Iterator[ParityRequest]:
    message: dict[str, object] = {"role": "user", "content": prompt}
    source = PromptInput(raw=prompt) if plan.raw else PromptInput(messages=(message,))
    ids = loaded.tokenizer.encode_rendered(render_prompt(loaded.template, source))
    for case in cases.values():
        yield ParityRequest(
            prompt_ids=ids,
            case=case,
            max_tokens=plan.max_tokens,
            chunk_tokens=plan.chunk_tokens,
            batch=plan.batch,
            context_tokens=plan.model.context_tokens,
        )


def _results(
    plan: ParityPlan, loaded: LoadedModel, requests: Requests, variants: Mapping[str, Variant]
) -> Iterator[Progress | ParityEvent]:
    gap = near_tie_gap(plan, loaded.facts.dtype)
    results: Iterator[ParityEvent]
    if plan.teacher_forced:
        total = len(requests) * len(variants)
        results = compare_forced(loaded, requests, variants, decided=gap)
    else:
        total = len(requests) * (len(variants) - 1)
        results = compare_variants(loaded, requests, variants, near_tie=gap)
    for done, result in enumerate[ParityEvent](results, start=1):
        yield result
        yield Progress("comparing", done, total)


def _chosen(option: str, names: tuple[str, ...], known: Mapping[str, T]) -> dict[str, T]:
    """Those of ``known`` that were named, in the order named; all where none was."""
    for name in names:
        if name not in known:
            raise InvalidParams(option, f"{name!r} is none of {', '.join(known)}")
    return {name: known[name] for name in names or known}
