"""Schedulers with a prompt cache on tiny models, judged by schedulers without one."""

from dataclasses import replace
from typing import Any

from engine.engine import Engine
from engine.params import SamplingParams, SequenceParams
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.inside import loaded_of
from tests.engine.scheduler.scheduler_rigs import Served, Told
from tests.engine.transfer_rigs import engine_of

SYSTEM = tuple((11 * i + 5) % 250 for i in range(40))
"""A beginning that requests share."""


def limits(**kw: Any) -> CacheLimits:
    """Small texts count too."""
    return CacheLimits(**{"min_tokens": 4, **kw})


def served(
    kind: str, tokenizer: Any, cache: CacheLimits | None = None, *, parallel: int = 4, **kw: Any
) -> Served:
    """A scheduler with a prompt cache (None: the one of `limits`)."""
    engine = engine_of(kind)
    engine.tokenizer = tokenizer
    settings = SchedulerSettings(
        Limits(parallel=parallel), prompt_cache=limits() if cache is None else cache
    )
    return Served(engine, settings=settings, **kw)


def without_cache(server: Served) -> Served:
    """A fresh scheduler like it that remembers nothing."""
    engine = Engine(loaded_of(server.engine), context_tokens=server.engine.context_tokens)
    engine.tokenizer = server.engine.tokenizer
    return Served(engine, settings=replace(server.scheduler.settings, prompt_cache=None))


def prompt(tokens: int, shift: int = 3) -> tuple[int, ...]:
    """Token ids; another shift, another text."""
    return tuple((7 * i + 3 * shift * (i % 3) + shift) % 250 for i in range(tokens))


def params(ids: tuple[int, ...], *, written: int = 6, **sampling: Any) -> SequenceParams:
    """A greedy request unless told otherwise."""
    return SequenceParams(ids, sampling=SamplingParams(**sampling), max_tokens=written)


def ask(server: Served, id_: str, ids: tuple[int, ...], *, written: int = 6, **kw: Any) -> Told:
    """One request from submit to its end."""
    told = server.submit(id_, params(ids, written=written), **kw)
    server.run()
    return told


def cache_of(server: Served) -> PromptCache:
    """The scheduler's cache."""
    cache = server.scheduler._pool.cache
    assert cache is not None
    return cache


def cold_tokens(server: Served, ids: tuple[int, ...], *, written: int = 6) -> list[int]:
    """What the same request writes where nothing is remembered."""
    return ask(without_cache(server), "cold", ids, written=written).tokens
