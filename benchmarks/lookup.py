"""Prompt lookup against plain decoding and against mlx-lm, on the starter; and the index's cost.

    python -m benchmarks.lookup                    # everything, about 20 minutes on two cores
    python -m benchmarks.lookup --only dense --repetitions 1 --tokens 120
    python -m benchmarks.lookup --only index

Modes
    dense       dense float32: plain, graded, gated, auto and mlx-lm's own loop, in turn, on the
                five tasks of `mlxcel bench lookup`; same weights, same BLAS, one process
    quantized   the same weights in 4 bits, where a wider forward does not pay: plain and auto, on
                the three tasks with the shorter prompts (such a prompt is read at 11 tokens/s)
    index       n-gram index over 100,000 tokens: build, and asks

mlx-lm runs through its `generate_step`, without a detokenizer and always greedily (its sampler is
another one); speed is that of the tokens after the first one.
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from engine.lookup.drafter import PromptLookup
from engine.lookup.governor import FixedGovernor
from engine.params import SpeculationParams
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.bench.measure import loaded_model, run_variant, turned, width_table
from mlxcel_cli.bench.report import lookup_lines, width_lines
from mlxcel_cli.bench.results import VARIANTS, VariantRun, VariantSummary, summarise
from mlxcel_cli.bench.tasks import TASKS, Task
from mlxcel_cli.config import load_settings

if TYPE_CHECKING:
    from engine.loading import OpenedModel

PEER = "mlx-lm"
MAX_DRAFT = 7
INDEX_TOKENS = 100_000
VOCABULARY = 49_152


def compared(
    variants: tuple[str, ...], *, quantized: bool, repetitions: int, tokens: int | None
) -> tuple[list[VariantRun], list[str]]:
    """Every run of every variant, in turn, and the width table as lines."""
    settings = load_settings(os.environ, command="bench")
    request = ModelRequest(name="starter", settings=settings, quantized=quantized)
    runs: list[VariantRun] = []
    with loaded_model(request, bool) as (ready, setup):
        print("\n".join((f"\n## {setup.model}", *setup.notes)), flush=True)
        tasks = TASKS[2:] if quantized else TASKS
        ids = ready.loaded.tokenizer.encode(TASKS[0].prompt)[: 64 if quantized else 300]
        widths = list(range(1, MAX_DRAFT + 2))
        repeats = 3 if quantized else 20
        table = width_table(ready.engine, ids, widths=widths, repeats=repeats)
        for variant in variants:  # uncounted: kernels and caches, and auto measures the widths
            run(ready, tasks[-1], variant, 0, 16)
        for repetition in range(repetitions):
            for task in tasks:
                most = task.tokens if tokens is None else tokens
                for variant in turned(variants, repetition):
                    done = run(ready, task, variant, repetition, most)
                    print(
                        f"{repetition} {task.name}, {variant}: {done.tokens} tokens, "
                        f"{done.per_second:.2f}/s",
                        flush=True,
                    )
                    runs.append(done)
    return runs, width_lines(table)


def run(ready: "OpenedModel", task: Task, variant: str, repetition: int, tokens: int) -> VariantRun:
    """One answer of one of our variants, or of mlx-lm."""
    if variant == PEER:
        return peer_run(ready, task, repetition, tokens)
    return run_variant(ready, task, variant, repetition, tokens, MAX_DRAFT)


def peer_run(ready: "OpenedModel", task: Task, repetition: int, tokens: int) -> VariantRun:
    """mlx-lm's own loop and functions on the very same model object."""
    from engine.models.cpu_forms import stock_forms

    with stock_forms():
        return _peer_run(ready, task, repetition, tokens)


def _peer_run(ready: "OpenedModel", task: Task, repetition: int, tokens: int) -> VariantRun:
    import mlx.core as mx

    from engine.models.mlxlm import import_generation

    loaded = ready.loaded
    ids = loaded.tokenizer.encode(task.prompt, add_bos=True)
    started = time.perf_counter()
    first = last = started
    written: list[int] = []
    for token, _ in import_generation().generate_step(
        mx.array(ids), loaded.model, max_tokens=tokens
    ):
        if token in loaded.eos_ids:
            break
        last = time.perf_counter()
        first = first if written else last
        written.append(int(token))
    whole_s = time.perf_counter() - started
    return VariantRun(
        task=task.name,
        variant=PEER,
        repetition=repetition,
        copies=task.copies,
        tokens=len(written),
        per_second=(len(written) - 1) / (last - first) if len(written) > 1 else 0.0,
        whole_per_second=len(written) / whole_s,
        text=loaded.tokenizer.decode(written),
    )


def over_peer(summaries: list[VariantSummary], runs: list[VariantRun]) -> Iterator[str]:
    """Each variant's median ratio to mlx-lm of the same repetition, on the tasks that copy."""
    rates = {(one.task, one.variant, one.repetition): one.per_second for one in runs}
    for one in summaries:
        if one.copies and one.variant != PEER:
            ratios = [
                rates[one.task, one.variant, turn] / rates[one.task, PEER, turn]
                for turn in sorted({run.repetition for run in runs})
            ]
            yield f"{one.task}, {one.variant} over {PEER}: {median(ratios):.3f}"


def index_figures(repeats: int = 7) -> list[str]:
    """Milliseconds of a build and microseconds of an ask over a long context."""
    draw = random.Random(1)
    # As texts do, a few tokens make up most of the context, and passages come again.
    words = [int(VOCABULARY * draw.random() ** 3) for _ in range(INDEX_TOKENS // 2)]
    context = words + words[1_000 : INDEX_TOKENS // 2] + words[:1_000]
    builds, asks, found = [], [], 0
    for _ in range(repeats):
        drafter = PromptLookup(SpeculationParams(), FixedGovernor(MAX_DRAFT))
        started = time.perf_counter()
        drafter.start(context[:-1], context[-1])
        drafter.prepare(INDEX_TOKENS)
        builds.append(time.perf_counter() - started)
        last = context[-1]
        for place in range(2_000):
            started = time.perf_counter()
            draft = drafter.ask(last, MAX_DRAFT)
            asks.append(time.perf_counter() - started)
            found += bool(draft)
            last = context[5_000 + place]
            drafter.observe((last,))
    return [
        f"\n## Index over {INDEX_TOKENS} tokens\n",
        f"build {median(builds) * 1e3:.1f} ms (target below 150), "
        f"ask {median(asks) * 1e6:.1f} us (target below 50), "
        f"{found} of {len(asks)} asks found a draft",
    ]


def main() -> None:
    """Run the asked modes and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("dense", "quantized", "index"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokens", type=int, help="most tokens of an answer; else the tasks' own")
    options = parser.parse_args()
    if options.only in (None, "index"):
        print("\n".join(index_figures()))
    if options.only in (None, "dense"):
        variants = (*VARIANTS, PEER)
        runs, widths = compared(
            variants, quantized=False, repetitions=options.repetitions, tokens=options.tokens
        )
        summaries = summarise(runs)
        print("\n".join(["", *widths, "", *lookup_lines(summaries), *over_peer(summaries, runs)]))
    if options.only in (None, "quantized"):
        runs, widths = compared(
            (VARIANTS[0], "auto"),
            quantized=True,
            repetitions=options.repetitions,
            tokens=min(options.tokens or 48, 48),
        )
        print("\n".join(["", *widths, "", *lookup_lines(summarise(runs))]))


if __name__ == "__main__":
    main()
