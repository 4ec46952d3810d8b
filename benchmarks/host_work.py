"""Host work of one decode step: thread CPU time around submit + collect, and around mlx-lm's step.

The model is small and deep (30 layers, hidden 64), so that what is measured is building and
dispatching the graph, which bounds decoding on a GPU.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import mlx.core as mx

from benchmarks.compiled_step import step_ms
from engine.engine import Engine
from engine.models.mlxlm import import_generation
from engine.params import SamplingParams, SequenceParams
from engine.prefill import plan_prefill
from tests.engine.rigs import loaded, tiny_model

PROMPT = tuple(range(20))


def host_table(*, steps: int = 150, rounds: int = 5) -> str:
    """A Markdown table of medians, interleaved."""
    model = tiny_model("llama", num_hidden_layers=30)
    variants: dict[str, Callable[[], float]] = {
        "mlxcel, B = 1": lambda: engine_step(model, 1, steps),
        "mlx-lm generate_step, B = 1": lambda: generate_step(model, steps),
        "mlxcel, B = 4": lambda: engine_step(model, 4, steps),
        "mlx-lm BatchGenerator, B = 4": lambda: batch_step(model, 4, steps),
        "mlxcel, B = 8": lambda: engine_step(model, 8, steps),
        "mlx-lm BatchGenerator, B = 8": lambda: batch_step(model, 8, steps),
        "mlxcel, B = 8, sampled": lambda: engine_step(model, 8, steps, temperature=0.8, top_k=40),
        "prototype of a fixed-capacity step, B = 1": lambda: _prototype(model, steps),
        "the same, compiled": lambda: _prototype(model, steps, compiled=True),
    }
    figures: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds):
        order = list(variants.items())
        for name, variant in order[turn % len(order) :] + order[: turn % len(order)]:
            # Each side as it runs on a CPU: ours leaves mx.compile out, mlx-lm keeps it.
            (mx.enable_compile if "mlx-lm" in name or "compiled" in name else mx.disable_compile)()
            figures[name].append(variant())
    mx.disable_compile()
    lines = [
        "\n## Host work per decode step (thread CPU ms)\n",
        "| variant | median | least |",
        "|---|--:|--:|",
    ]
    lines += [f"| {name} | {median(of):.2f} | {min(of):.2f} |" for name, of in figures.items()]
    return "\n".join(lines)


def engine_step(model: Any, rows: int, steps: int, **sampling: Any) -> float:
    """Median milliseconds of a steady step of ours."""
    engine = Engine(loaded(model, "llama"))
    seqs = []
    for _ in range(rows):
        params = SamplingParams(**sampling)
        seq = engine.open(SequenceParams(PROMPT, max_tokens=steps + 20, sampling=params))
        for chunk in plan_prefill(prompt_tokens=len(PROMPT)):
            engine.prefill(seq, chunk)
        seqs.append(seq)
    spent = []
    ticket = engine.submit(seqs)
    for _ in range(steps):
        started = time.thread_time()
        ahead = engine.submit(seqs)
        engine.collect(ticket)
        spent.append(time.thread_time() - started)
        ticket = ahead
    return median(spent) * 1000


def generate_step(model: Any, steps: int) -> float:
    """The same of mlx-lm's single-row loop."""
    tokens = import_generation().generate_step(mx.array(PROMPT), model, max_tokens=steps + 20)
    return _timed(lambda: next(tokens), steps)


def _prototype(model: Any, steps: int, *, compiled: bool = False) -> float:
    return step_ms(model, steps=steps, compiled=compiled)


def batch_step(model: Any, rows: int, steps: int) -> float:
    """The same of mlx-lm's batch loop."""
    generator = import_generation().BatchGenerator(model, max_tokens=steps + 20)
    generator.insert([list(PROMPT)] * rows)
    return _timed(generator.next, steps)


def _timed(step: Callable[[], Any], steps: int) -> float:
    for _ in range(6):
        step()
    spent = []
    for _ in range(steps):
        started = time.thread_time()
        step()
        spent.append(time.thread_time() - started)
    return median(spent) * 1000
