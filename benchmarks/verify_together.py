"""Drafts of several rows: verified one by one or in one padded forward, and a plain step.

    python -m benchmarks.verify_together                       # about three minutes on two cores
    python -m benchmarks.verify_together --rows 2 --widths 4

Rows of different lengths on the starter as dense float32, greedy. Width is the newest token and the
draft behind it. Drafts are wrong, so that each row grows by one token whichever way it is done; a
right one costs the same forward. The variants of a repetition follow one another in turning order.

    step            one plain step of all rows, not pipelined
    one by one      each row with a draft, one forward a row
    together        the same in one forward
    mixed, apart    half of the rows with a draft, one by one, then a plain step of the others
    mixed, together the same in one forward
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import platformdirs

from benchmarks.starter_weights import starter_weights
from benchmarks.tables import head, note, row
from engine.engine import Engine
from engine.models.load import LoadedModel, LoadOptions, WeightForm, load
from engine.outcome import SeqId
from engine.params import SequenceParams
from engine.prefill import plan_prefill
from engine.runtime.blas import prepare_blas

ROWS = (2, 4, 8)
WIDTHS = (2, 4, 8)
VARIANTS = ("step", "one by one", "together", "mixed, apart", "mixed, together")
PROMPT_TOKENS = 64
RAGGED_TOKENS = 9
"""Tokens by which each prompt is longer than the one before."""


def opened(engine: Engine, rows: int) -> list[SeqId]:
    """Rows that decode, each of another length."""
    chance = random.Random(7)
    seqs = []
    for at in range(rows):
        tokens = PROMPT_TOKENS + RAGGED_TOKENS * at
        ids = tuple(chance.randrange(1000, 40000) for _ in range(tokens))
        seqs.append(engine.open(SequenceParams(ids, max_tokens=1000, ignore_eos=True)))
        for chunk in plan_prefill(prompt_tokens=tokens):
            engine.prefill(seqs[-1], chunk)
    return seqs


def variants(engine: Engine, seqs: Sequence[SeqId], width: int) -> dict[str, Callable[[], None]]:
    """What is timed."""
    chance = random.Random(width)
    drafts = {seq: [chance.randrange(1000, 40000) for _ in range(width - 1)] for seq in seqs}
    half = {seq: draft if i % 2 == 0 else [] for i, (seq, draft) in enumerate(drafts.items())}

    def one_by_one() -> None:
        for seq, draft in drafts.items():
            engine.verify(seq, draft)

    def apart() -> None:
        engine.step([seq for seq, draft in half.items() if not draft])
        for seq, draft in half.items():
            if draft:
                engine.verify(seq, draft)

    return {
        "step": lambda: _done(engine.step(seqs)),
        "one by one": one_by_one,
        "together": lambda: _done(engine.verify_together(drafts)),
        "mixed, apart": apart,
        "mixed, together": lambda: _done(engine.verify_together(half)),
    }


def measured(engine: Engine, rows: int, width: int, repetitions: int) -> dict[str, float]:
    """Median milliseconds of each variant."""
    seqs = opened(engine, rows)
    work = variants(engine, seqs, width)
    for variant in VARIANTS:
        work[variant]()
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for repetition in range(repetitions):
        turn = repetition % len(VARIANTS)
        for variant in (*VARIANTS[turn:], *VARIANTS[:turn]):
            started = time.perf_counter()
            work[variant]()
            times[variant].append((time.perf_counter() - started) * 1e3)
    for seq in seqs:
        engine.close(seq)
    return {variant: median(spent) for variant, spent in times.items()}


def compare(loaded: LoadedModel, rows: Sequence[int], widths: Sequence[int], times: int) -> None:
    """Print the table, row by row."""
    engine = Engine(loaded)
    assert engine.verifies_together
    ratios = ("together / one by one", "mixed: together / apart")
    head("Verifying drafts (ms)", "rows, width", *VARIANTS, *ratios)
    for count in rows:
        for width in widths:
            ms = measured(engine, count, width, times)
            row(
                f"{count}, {width}",
                *(ms[variant] for variant in VARIANTS),
                ms["together"] / ms["one by one"],
                ms["mixed, together"] / ms["mixed, apart"],
            )
    note(f"Medians of {times}; variants interleaved, in turning order.")


def _done(outcomes: Sequence[object]) -> None:
    assert outcomes


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    options = parser.parse_args()
    report = prepare_blas(platformdirs.user_cache_path("mlxcel-benchmarks"), None, None)
    loaded = load(starter_weights().dense, LoadOptions(form=WeightForm.DENSE))
    note(f"BLAS: {report.route}, {report.threads} threads")
    compare(loaded, options.rows, options.widths, options.repetitions)


if __name__ == "__main__":
    main()
