"""Many rows at once against mlx-lm's BatchGenerator: same process, weights and BLAS, interleaved.

    python -m benchmarks.batch                # everything, about 15 minutes on two cores
    python -m benchmarks.batch --only steady --rounds 3

Parts
    steady    equal rows that decode together: aggregate tokens/s at B = 1, 4, 8, 16
    mixed     8 rows with different temperature, top-p and penalties
    churn     rows of 64 to 512 prompt and 16 to 64 new tokens that keep arriving, 8 at once
    rows      what it costs to admit one row and to finish one, 7 to 8 rows of 1,024 tokens
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import platformdirs

from benchmarks.starter_weights import starter_weights
from engine.engine import Engine
from engine.models.cpu_forms import stock_forms
from engine.models.load import LoadedModel, LoadOptions, WeightForm, load
from engine.models.mlxlm import import_generation
from engine.outcome import SeqId
from engine.params import SamplingParams, SequenceParams
from engine.prefill import plan_prefill
from engine.runtime.blas import prepare_blas
from engine.steps import Ticket

STEPS = 48


class Ours:
    """A row driver on the engine: open and prefill when there is room, then one step for all."""

    def __init__(self, loaded: LoadedModel, width: int) -> None:
        self.engine = Engine(loaded)
        self._width = width
        self._waiting: list[SequenceParams] = []
        self._live: list[SeqId] = []
        self._ticket: Ticket | None = None
        self.written = 0

    def insert(self, requests: Sequence[SequenceParams]) -> None:
        """Queue requests."""
        self._waiting += requests

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._waiting and not self._live

    def tick(self) -> int:
        """Admit one row if there is room, then step; tokens written."""
        wrote = 0
        if self._waiting and len(self._live) < self._width:
            wrote += self._admit(self._waiting.pop(0))
        if not self._live:
            return wrote
        ticket = self._ticket or self.engine.submit(self._live)
        ahead = [seq for seq in self._live if self.engine.wants_step(seq)]
        self._ticket = self.engine.submit(ahead) if ahead else None
        for outcome in self.engine.collect(ticket):
            wrote += 1
            if outcome.is_final:
                self._live.remove(outcome.seq)
                self.engine.close(outcome.seq)
        self.written += wrote
        return wrote

    def fill(self) -> None:
        """Admit all that wait."""
        while self._waiting:
            self._admit(self._waiting.pop(0))

    def _admit(self, params: SequenceParams) -> int:
        seq = self.engine.open(params)
        first = None
        for chunk in plan_prefill(prompt_tokens=len(params.prompt_ids)):
            first = self.engine.prefill(seq, chunk).first
        assert first is not None
        if first.is_final:
            self.engine.close(seq)
        else:
            self._live.append(seq)
        return 1


class Theirs:
    """mlx-lm's batch loop, on mlx-lm's own functions."""

    def __init__(self, model: Any, width: int, **options: Any) -> None:
        self._generator = import_generation().BatchGenerator(
            model, completion_batch_size=width, prefill_batch_size=min(width, 8), **options
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    @stock_forms()
    def next(self) -> Any:
        """One round of it."""
        return self._generator.next()


def steady(loaded: LoadedModel, rows: int) -> tuple[float, float]:
    """Aggregate tokens/s of ours and theirs, one steady stretch each."""
    requests = [_request(100 + i, 64, STEPS + 8) for i in range(rows)]
    ours = Ours(loaded, rows)
    ours.insert(requests)
    ours.fill()
    generator = Theirs(loaded.model, rows)
    generator.insert([list(r.prompt_ids) for r in requests], [STEPS + 8] * rows)
    _until_full(generator, rows)
    return _rate(ours.tick, STEPS), _rate(lambda: len(generator.next()[1]), STEPS)


def mixed(loaded: LoadedModel) -> tuple[float, float]:
    """The same with eight different samplers."""
    from mlx_lm.sample_utils import make_logits_processors, make_sampler

    settings = [(0.5 + i / 10, 0.8 + i / 50, 1.05 + i / 50) for i in range(8)]
    requests = [
        _request(
            100 + i,
            64,
            STEPS + 8,
            SamplingParams(temperature=t, top_p=p, repetition_penalty=r, seed=i),
        )
        for i, (t, p, r) in enumerate(settings)
    ]
    ours = Ours(loaded, 8)
    ours.insert(requests)
    ours.fill()
    generator = Theirs(loaded.model, 8)
    generator.insert(
        [list(r.prompt_ids) for r in requests],
        [STEPS + 8] * 8,
        samplers=[make_sampler(t, top_p=p) for t, p, _ in settings],
        logits_processors=[
            make_logits_processors(repetition_penalty=r, repetition_context_size=64)
            for _, _, r in settings
        ],
    )
    _until_full(generator, 8)
    return _rate(ours.tick, STEPS), _rate(lambda: len(generator.next()[1]), STEPS)


def churn(loaded: LoadedModel, requests: int = 24) -> tuple[float, float]:
    """Tokens/s over a stream of requests of many lengths."""
    chance = random.Random(7)
    stream = [_request(i, chance.randint(64, 512), chance.randint(16, 64)) for i in range(requests)]
    ours = Ours(loaded, 8)
    ours.insert(stream)
    started = time.perf_counter()
    wrote = 0
    while not ours.is_done:
        wrote += ours.tick()
    our_rate = wrote / (time.perf_counter() - started)
    generator = Theirs(loaded.model, 8)
    uids = generator.insert([list(r.prompt_ids) for r in stream], [r.max_tokens for r in stream])
    waiting, wrote, started = set(uids), 0, time.perf_counter()
    while waiting:
        for response in generator.next()[1]:
            wrote += 1
            if response.finish_reason is not None:
                waiting.discard(response.uid)
    return our_rate, wrote / (time.perf_counter() - started)


def row_costs(loaded: LoadedModel) -> tuple[tuple[float, float], tuple[float, float]]:
    """Milliseconds to admit and to finish one row: ours, theirs."""
    ours = Ours(loaded, 8)
    requests = [_request(i, 1000, 60) for i in range(7)]
    ours.insert(requests)
    ours.fill()
    for _ in range(6):
        ours.tick()
    ours.insert([_request(9, 1000, 60)])
    ours.fill()
    joined = _timed(ours.tick)
    usual = median(_timed(ours.tick) for _ in range(8))
    seq = ours._live[0]  # noqa: SLF001
    started = time.perf_counter()
    ours._live.remove(seq)  # noqa: SLF001
    ours.engine.close(seq)
    left = time.perf_counter() - started + _timed(ours.tick)
    usual_after = median(_timed(ours.tick) for _ in range(8))
    batch, row = _their_caches(loaded.model, 7), _their_caches(loaded.model, 1)
    admit = _timed(lambda: [a.extend(b) for a, b in zip(batch, row, strict=True)], batch)
    finish = _timed(lambda: [a.filter(mx.array([1, 2, 3, 4, 5, 6, 7])) for a in batch], batch)
    return (
        (max(0.0, joined - usual) * 1e3, max(0.0, left - usual_after) * 1e3),
        (admit * 1e3, finish * 1e3),
    )


def _their_caches(model: Any, rows: int) -> list[Any]:
    from mlx_lm.models.cache import BatchKVCache

    args = model.args
    caches = []
    for _ in range(args.num_hidden_layers):
        cache = BatchKVCache([0] * rows)
        shape = (rows, args.num_key_value_heads, 1024, args.head_dim)
        cache.update_and_fetch(mx.ones(shape), mx.ones(shape))
        caches.append(cache)
    mx.eval([cache.state[:2] for cache in caches])
    return caches


def _timed(work: Callable[[], Any], caches: Sequence[Any] = ()) -> float:
    started = time.perf_counter()
    work()
    mx.eval([cache.state[:2] for cache in caches])
    return time.perf_counter() - started


def _until_full(generator: Any, rows: int) -> None:
    seen: set[int] = set()
    while len(seen) < rows:
        seen |= {response.uid for response in generator.next()[1]}


def _rate(step: Callable[[], int], steps: int) -> float:
    for _ in range(3):
        step()
    started, wrote = time.perf_counter(), 0
    for _ in range(steps - 6):
        wrote += step()
    return wrote / (time.perf_counter() - started)


def _request(
    seed: int, prompt_tokens: int, new_tokens: int, sampling: SamplingParams | None = None
) -> SequenceParams:
    chance = random.Random(seed)
    ids = tuple(chance.randrange(1000, 40000) for _ in range(prompt_tokens))
    return SequenceParams(ids, sampling or SamplingParams(), max_tokens=new_tokens, ignore_eos=True)


def _row(name: str, pairs: Sequence[tuple[float, float]]) -> None:
    ratios = sorted(ours / others for ours, others in pairs)
    print(
        f"| {name} | {median(p[0] for p in pairs):.1f} | {median(p[1] for p in pairs):.1f} "
        f"| {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |",
        flush=True,
    )


def main() -> None:
    """Run the asked parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("steady", "mixed", "churn", "rows"))
    options = parser.parse_args()
    report = prepare_blas(platformdirs.user_cache_path("mlxcel-benchmarks"), None, None)
    folder: Path = starter_weights().dense
    loaded = load(folder, LoadOptions(form=WeightForm.DENSE))
    print(f"BLAS: {report.route}, {report.threads} threads\n")
    print("| part | mlxcel tok/s | BatchGenerator tok/s | ratio |\n|---|--:|--:|--:|")
    rounds = range(options.rounds)
    if options.only in (None, "steady"):
        for rows in (1, 4, 8, 16):
            _row(f"steady, B = {rows}", [steady(loaded, rows) for _ in rounds])
    if options.only in (None, "mixed"):
        _row("mixed samplers, B = 8", [mixed(loaded) for _ in rounds])
    if options.only in (None, "churn"):
        _row("churn, up to 8", [churn(loaded) for _ in range(max(1, options.rounds // 2))])
    if options.only in (None, "rows"):
        costs = [row_costs(loaded) for _ in rounds]
        _row("admit a row (ms)", [(ours[0], others[0]) for ours, others in costs])
        _row("finish a row (ms)", [(ours[1], others[1]) for ours, others in costs])


if __name__ == "__main__":
    main()
