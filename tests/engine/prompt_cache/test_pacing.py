"""What the cache copies and reads delays the request it is for, not the rows that run."""

import threading
from pathlib import Path
from typing import Any

import pytest

from engine.prompt_cache import disk
from tests.engine.prompt_cache.cache_rigs import (
    ask,
    cache_of,
    cold_tokens,
    limits,
    params,
    prompt,
    served,
)
from tests.engine.scheduler.scheduler_rigs import Clock, Served, Told

RUN_TOKENS = 32
LONG = prompt(10 * RUN_TOKENS + 20)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("engine.prompt_cache.cache.RUN_TOKENS", RUN_TOKENS)


def with_neighbour(tokenizer: Any, **kw: Any) -> tuple[Served, Told]:
    """A server on which one row decodes; an export of a run takes a tick."""
    server = served("dense", tokenizer, chunk=0, clock=Clock(0.01), **kw)
    neighbour = server.submit("n", params(prompt(9, 5), written=100))
    while not neighbour.tokens:
        server.tick()
    return server, neighbour


def end_long(server: Served) -> None:
    """A row that has ended and is being exported."""
    told = server.submit("long", params(LONG, written=2))
    while not told.is_over:
        server.tick()
    assert cache_of(server).stats().pending == 1


def tick(server: Served, neighbour: Told) -> None:
    """A tick in which the neighbour has a token."""
    before = len(neighbour.tokens)
    server.tick()
    assert len(neighbour.tokens) > before


def test_a_request_with_another_prompt_does_not_wait_for_an_export_nor_hurry_it(tokenizer):
    server, _ = with_neighbour(tokenizer)
    end_long(server)
    told = server.submit("b", params(prompt(30, 7)))
    pending = cache_of(server)._exports[0]
    copied = cache_of(server)._store.covered(pending.scope, pending.ids)
    server.tick()
    assert told.events
    assert cache_of(server)._store.covered(pending.scope, pending.ids) <= copied + RUN_TOKENS
    server.run()
    assert told.tokens == cold_tokens(server, prompt(30, 7))


def test_the_next_turn_waits_for_its_export_while_its_neighbours_continue(tokenizer):
    server, neighbour = with_neighbour(tokenizer)
    end_long(server)
    ids = (*LONG, 1, 2, 3)
    told = server.submit("b", params(ids))
    while not told.events:
        tick(server, neighbour)
    assert cache_of(server).stats().pending == 0
    server.run()
    assert told.done.usage.cached_tokens >= len(LONG)
    assert told.tokens == cold_tokens(server, ids)


@pytest.fixture
def kept(tokenizer, tmp_path: Path):
    """Limits with a folder that holds the long prompt."""
    bounds = limits(folder=tmp_path / "kv")
    first = served("dense", tokenizer, bounds)
    ask(first, "a", LONG)
    first.scheduler.close()
    return bounds


def test_files_are_read_by_a_thread_while_rows_continue(tokenizer, kept, monkeypatch):
    server, neighbour = with_neighbour(tokenizer, cache=kept)
    readable, threads = threading.Event(), set()
    read = disk.read_content

    def slow(path: Path) -> bytes:
        threads.add(threading.current_thread().name)
        assert readable.wait(30)
        return read(path)

    monkeypatch.setattr(disk, "read_content", slow)
    told = server.submit("b", params(LONG))
    other = server.submit("c", params(prompt(12, 8), written=3))
    for _ in range(12):
        tick(server, neighbour)
    assert other.is_over
    assert not told.events
    readable.set()
    server.run()
    server.scheduler.close()
    assert told.done.usage.cached_tokens == len(LONG) - 1
    assert told.tokens == cold_tokens(server, LONG)
    assert all(name.startswith("prompt-cache-reader") for name in threads)


def test_a_reset_drops_what_is_being_read(tokenizer, kept, monkeypatch):
    server, _ = with_neighbour(tokenizer, cache=kept)
    readable = threading.Event()
    read = disk.read_content
    monkeypatch.setattr(disk, "read_content", lambda path: (readable.wait(30), read(path))[1])
    told = server.submit("b", params(LONG))
    server.tick()
    server.scheduler.forget_prompts()
    readable.set()
    server.run()
    server.scheduler.close()
    assert told.done.usage.cached_tokens == 0
