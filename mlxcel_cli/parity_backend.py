"""The engine thread's side of ``mlxcel parity``: loads the model and compares its arms.

Whatever imports MLX is imported inside the functions: the BLAS has to be chosen before.
"""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from engine.errors import InvalidParams
from engine.models.progress import Progress
from mlxcel_cli.config import silence_advice
from mlxcel_cli.engine_backend import choose_blas, render_prompt
from mlxcel_cli.engine_thread import Emit
from mlxcel_cli.parity_plan import ParityPlan
from mlxcel_cli.parity_report import Forced, Introduction, Pair, ParityEvent
from mlxcel_cli.prompt_input import PromptInput

if TYPE_CHECKING:
    from engine.models.load import LoadedModel
    from engine.parity import Arm, PairResult, ParityCase, ParityRequest
    from mlxcel_cli.model_loading import ReadyModel

T = TypeVar("T")

Requests = list[tuple[int, "ParityRequest"]]


def known_arms() -> Mapping[str, "Arm"]:
    """Every arm by its name, in order."""
    from engine.parity_arms import ENGINE_ARMS
    from mlxcel_cli.parity_fronts import FRONT_ARMS

    engine, *others = ENGINE_ARMS.items()
    return dict((engine, *FRONT_ARMS.items(), *others))


def compared(
    plan: ParityPlan, emit: "Emit[Progress | ParityEvent]"
) -> "Iterator[Progress | ParityEvent]":
    """An introduction and every result, as they come.

    Raises:
        InvalidParams: an arm or a case of that name there is none.
        EngineError: the model cannot be had, or an arm failed.
    """
    silence_advice(os.environ)
    notes, warnings = choose_blas(plan.model)
    # The BLAS is chosen; from here on MLX may be imported.
    from engine.parity import parity_cases
    from mlxcel_cli.model_loading import load_model

    cases = _chosen("--cases", plan.cases, parity_cases(plan.seed))
    arms = _chosen("--arms", plan.arms, known_arms())
    if plan.teacher_forced:
        cases = {"greedy": parity_cases(plan.seed)["greedy"]}
        arms.pop("mlx-lm", None)
    if len(arms) < 2 - plan.teacher_forced:
        raise InvalidParams("--arms", "name more: there is nothing to compare")
    ready = load_model(plan.model, emit)
    try:
        yield _introduction(plan, ready, notes, warnings)
        requests = [
            (number, request)
            for number, prompt in enumerate(plan.prompts, start=1)
            for request in _requests(ready.loaded, prompt, plan, cases)
        ]
        yield from _results(plan, ready.loaded, requests, arms)
    finally:
        ready.held.close()


def near_tie_gap(plan: ParityPlan, dtype: str) -> float:
    """The widest distance that is no mismatch: the one asked for, else the weights' type's."""
    from engine.parity import DECIDED_GAP, NEAR_TIE

    if plan.gap is not None:
        return plan.gap
    return DECIDED_GAP if plan.teacher_forced else NEAR_TIE.get(dtype, NEAR_TIE["float32"])


def _introduction(
    plan: ParityPlan, ready: "ReadyModel", notes: tuple[str, ...], warnings: tuple[str, ...]
) -> Introduction:
    facts = ready.loaded.facts
    return Introduction(
        model=facts.name,
        dtype=facts.dtype,
        gap=near_tie_gap(plan, facts.dtype),
        seed=plan.seed,
        deterministic=plan.model.settings.machine.deterministic,
        notes=(*ready.notes, *notes),
        warnings=warnings,
    )


def _requests(
    loaded: "LoadedModel", prompt: str, plan: ParityPlan, cases: "Mapping[str, ParityCase]"
) -> "Iterator[ParityRequest]":
    from engine.parity import ParityRequest

    asked = PromptInput(raw=prompt) if plan.raw else PromptInput(messages=(_as_message(prompt),))
    ids = loaded.tokenizer.encode_rendered(render_prompt(loaded, asked))
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
    plan: ParityPlan, loaded: "LoadedModel", requests: Requests, arms: "Mapping[str, Arm]"
) -> "Iterator[Progress | ParityEvent]":
    from engine.parity import compare_arms, force_judge

    gap = near_tie_gap(plan, loaded.facts.dtype)
    if plan.teacher_forced:
        total = len(requests) * len(arms)
        for done, forced in enumerate(force_judge(loaded, requests, arms, decided=gap), start=1):
            yield Forced(forced)
            yield Progress("comparing", done, total)
        return
    total = len(requests) * (len(arms) - 1)
    for done, pair in enumerate(compare_arms(loaded, requests, arms, near_tie=gap), start=1):
        yield Pair(pair, _pieces(loaded, pair))
        yield Progress("comparing", done, total)


def _pieces(loaded: "LoadedModel", pair: "PairResult") -> tuple[str, str]:
    """The texts of the two tokens that part a pair; an end is empty."""
    if pair.divergence is None:
        return "", ""
    first, second = (
        "" if token is None else loaded.tokenizer.decode([token], skip_special=False)
        for token in pair.divergence.ids
    )
    return first, second


def _as_message(prompt: str) -> dict[str, object]:
    return {"role": "user", "content": prompt}


def _chosen(option: str, names: tuple[str, ...], known: Mapping[str, T]) -> dict[str, T]:
    """Those of ``known`` that were named, in the order named; all where none was."""
    for name in names:
        if name not in known:
            raise InvalidParams(option, f"{name!r} is none of {', '.join(known)}")
    return {name: known[name] for name in names or known}
