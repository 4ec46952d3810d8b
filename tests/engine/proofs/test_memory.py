"""What a step costs in memory, and that thousands of them cost no more than one."""

import gc
import tracemalloc
from io import StringIO
from random import Random
from typing import Any

import mlx.core as mx
import pytest

from engine.engine import Engine
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import layers_of, storage_of
from tests.engine.rigs import loaded, prefill, tiny_model

VOCAB, HEADS, WIDTH = 259, 4, 64
PROMPT = 900


def decoding(rows: int, *, ragged: bool) -> tuple[Engine, list[Any]]:
    """An engine with so many long rows that decode, one in two of them sampled."""
    engine = Engine(loaded(tiny_model("llama"), "llama", context=2048))
    seqs = []
    for row in range(rows):
        ids = tuple((i * 7 + row) % 256 for i in range(PROMPT + row * ragged))
        sampling = SamplingParams(
            temperature=0.7 * (row % 2), top_p=0.9, repetition_penalty=1.1, seed=row
        )
        seqs.append(engine.open(SequenceParams(ids, sampling, max_tokens=64)))
        prefill(engine, seqs[-1], chunk=512)
    return engine, seqs


@pytest.mark.parametrize("ragged", [False, True], ids=["equal", "ragged"])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_step_allocates_vectors_a_mask_and_logits_and_no_kv(rows: int, ragged: bool):
    engine, seqs = decoding(rows, ragged=ragged)
    ticket = engine.submit(seqs)
    for _ in range(3):
        later = engine.submit(seqs)
        engine.collect(ticket)
        ticket = later
    kv_of_a_row = sum(array.nbytes for array in storage_of(engine).arrays()) / rows
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    tracemalloc.start()
    try:
        later = engine.submit(seqs)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    engine.collect(ticket)
    engine.collect(later)
    read = PROMPT + 64 + rows
    # Per row: the logits and what draws make of them, attention scores, a layer's activations.
    listed = 4 * (8 * VOCAB + 2 * HEADS * read + 8 * 2 * WIDTH)
    assert listed < kv_of_a_row / 10
    assert mx.get_peak_memory() - before < rows * listed
    # On the host: a ticket, ints for the small arrays, one entry a row.
    assert kept < 4096 + 256 * rows
    assert peak < 8192 + 1024 * rows


def edges(engine: Engine) -> int:
    """Edges of the graph that hangs on what the engine keeps between steps."""
    kept = list(storage_of(engine).arrays())
    for layer in layers_of(engine):
        before = getattr(layer, "_before", {})
        kept += [array for way in before.values() for old in way for array in old]
    out = StringIO()
    mx.export_to_dot(out, *[array for array in kept if array is not None])
    return out.getvalue().count("->")


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_graph_and_memory_stay_flat_over_thousands_of_steps(family: str):
    # mlx-lm#1641, #1871, #1332, #1672: metadata kept whole graphs of steps alive; #1909.
    model = tiny_model(family, hidden_size=32, intermediate_size=32)
    engine = Engine(loaded(model, family, context=512))
    steps = 3000 if family == "llama" else 1200
    rng = Random("flat")
    live: dict[Any, int] = {}
    seen: list[tuple[int, int, int]] = []
    ticket = None
    for step in range(steps):
        while len(live) < 3:
            prompt = tuple(rng.randrange(256) for _ in range(rng.randint(1, 12)))
            sampling = SamplingParams(temperature=1.0, seed=step, repetition_penalty=1.1)
            params = SequenceParams(prompt, sampling, max_tokens=rng.randint(4, 60))
            seq = engine.open(params)
            live[seq] = step
            prefill(engine, seq)
        ahead = [seq for seq in live if engine.wants_step(seq)]
        later = engine.submit(ahead) if ahead else None
        for outcome in engine.collect(ticket) if ticket else []:
            if outcome.is_final:
                engine.close(outcome.seq)
                del live[outcome.seq]
        ticket = later
        if step % (steps // 6) == steps // 6 - 1:
            engine.collect(ticket) if ticket else None
            ticket = None
            for seq in list(live):
                engine.close(seq)
            live.clear()
            gc.collect()
            mx.clear_cache()
            seen.append((edges_after_one_row(engine), mx.get_active_memory(), objects()))
    graph, memory, count = zip(*seen, strict=True)
    assert len(set(graph)) == 1
    assert max(memory[1:]) <= memory[0] + 4096
    assert max(count[1:]) <= count[0] + 200


def edges_after_one_row(engine: Engine) -> int:
    """Edges after a short row's steps, the last one still kept."""
    seq = engine.open(SequenceParams((1, 2, 3), SamplingParams(temperature=0, seed=0)))
    prefill(engine, seq)
    for _ in range(4):
        engine.step([seq])
    count = edges(engine)
    engine.close(seq)
    return count


def objects() -> int:
    return len(gc.get_objects())
