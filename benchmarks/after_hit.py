"""Decoding after a prompt that was read, and after the same one from the prompt cache.

    python -m benchmarks.after_hit

In one process, in pairs: a second turn's own length and the clients of a server play no part.
"""

import argparse
import random
import time

import platformdirs

from benchmarks.starter_weights import starter_weights
from benchmarks.tables import head, note, row, spread
from engine.engine import Engine
from engine.events import Delta
from engine.models.load import LoadOptions, WeightForm, load
from engine.params import SequenceParams
from engine.prompt_cache.limits import CacheLimits
from engine.runtime.blas import prepare_blas
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.scheduler import BatchScheduler
from engine.scheduler.settings import SchedulerSettings


def main() -> None:
    """Print a line a pair and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--new-tokens", type=int, default=48)
    asked = parser.parse_args()
    prepare_blas(platformdirs.user_cache_path("mlxcel-benchmarks"), None, None)
    engine = Engine(load(starter_weights().dense, LoadOptions(form=WeightForm.DENSE)))
    scheduler = BatchScheduler(engine, SchedulerSettings(prompt_cache=CacheLimits()))
    chance = random.Random(1)
    head("Decoding, tokens/s", "pair", "prompt read", "prompt cached", "cached over read")
    ratios = []
    for pair in range(asked.pairs + 1):
        ids = tuple(chance.randrange(1000, 40_000) for _ in range(asked.prompt_tokens))
        rates = [_rate(scheduler, f"{pair}.{turn}", ids, asked.new_tokens) for turn in range(2)]
        if pair:  # the first one is uncounted
            ratios.append(rates[1] / rates[0])
            row(str(pair), *rates, ratios[-1])
    note(f"Cached over read: {spread(ratios)}.")


def _rate(scheduler: BatchScheduler, id_: str, ids: tuple[int, ...], new: int) -> float:
    """Tokens a second after the first one."""
    scheduler.submit(ScheduledRequest(id_, SequenceParams(ids, max_tokens=new)))
    at: list[float] = []
    while not scheduler.idle:
        at += [time.perf_counter() for event in scheduler.tick() if isinstance(event, Delta)]
        scheduler.flush()
    return (len(at) - 1) / (at[-1] - at[0])


if __name__ == "__main__":
    main()
