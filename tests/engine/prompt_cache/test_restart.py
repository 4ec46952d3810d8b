"""A server that starts again on the folder of another goes on where that one was."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest

from engine.engine import Engine
from engine.errors import InvalidParams
from engine.models.load import load
from engine.prompt_cache.cache import PromptCache
from engine.scheduler.settings import SchedulerSettings
from tests.engine.models.tiny import write_tiny
from tests.engine.prompt_cache.cache_rigs import (
    SYSTEM,
    ask,
    cache_of,
    cold_tokens,
    limits,
    prompt,
    served,
)
from tests.engine.scheduler.scheduler_rigs import Served
from tests.engine.transfer_rigs import KINDS, engine_of

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def start(tmp_path, tokenizer):
    """Starts servers on one folder, one after the other."""
    running = []

    def begin(kind: str, **bounds):
        while running:
            running.pop().scheduler.close()
        running.append(served(kind, tokenizer, limits(folder=tmp_path / "kv", **bounds)))
        return running[0]

    yield begin
    while running:
        running.pop().scheduler.close()


@each_kind
def test_the_same_prompt_after_a_restart_forwards_only_its_last_token(kind, start):
    ask(start(kind), "a", prompt(50))
    server = start(kind)
    told = ask(server, "b", prompt(50))
    assert told.done.usage.cached_tokens == 49
    assert told.tokens == cold_tokens(server, prompt(50))
    assert cache_of(server).stats().counters.disk_tokens >= 49


@each_kind
def test_the_next_turn_after_a_restart_reads_only_what_is_new(kind, start):
    first = ask(start(kind), "a", prompt(48))
    ids = prompt(48) + tuple(first.tokens) + (5, 6)
    server = start(kind)
    told = ask(server, "b", ids)
    assert told.done.timings.prompt_n == 3
    assert told.tokens == cold_tokens(server, ids)


def test_memory_and_folder_continue_from_one_another(start):
    long = SYSTEM + prompt(250)
    ask(start("dense"), "a", long)
    server = start("dense")
    ask(server, "b", SYSTEM[:30] + prompt(9, 1))
    told = ask(server, "c", long)
    assert told.done.usage.cached_tokens == len(long) - 1
    assert told.tokens == cold_tokens(server, long)


def test_what_memory_has_no_room_for_comes_from_the_folder(start):
    server = start("dense", max_bytes=60_000)
    for i in range(3):
        ask(server, f"a{i}", prompt(80, i))
    assert cache_of(server).stats().counters.evicted_bytes > 0
    server.scheduler.close()
    server = start("dense", max_bytes=60_000)
    for i in range(3):
        assert ask(server, f"b{i}", prompt(80, i)).done.usage.cached_tokens == 79
        assert cache_of(server).nbytes <= 60_000


@each_kind
def test_another_model_finds_nothing_in_the_folder(kind, start, tokenizer, tmp_path):
    ask(start(kind), "a", prompt(50))
    other = next(one for one in KINDS if one != kind)
    server = start(other)
    told = ask(server, "b", prompt(50))
    assert told.done.usage.cached_tokens == 0
    assert told.tokens == cold_tokens(server, prompt(50))


@each_kind
def test_damaged_files_cost_a_prefill_and_no_answer(kind, start, tmp_path, caplog):
    ask(start(kind), "a", prompt(50))
    start(kind)
    for path in (tmp_path / "kv").iterdir():
        path.write_bytes(path.read_bytes()[:-50] + b"?" * 50)
    server = start(kind)
    told = ask(server, "b", prompt(50))
    assert told.done.usage.cached_tokens == 0
    assert told.tokens == cold_tokens(server, prompt(50))
    assert "ignored" in caplog.text


def test_a_reset_empties_the_folder_too(start, tmp_path):
    server = start("dense")
    ask(server, "a", prompt(50))
    server.scheduler.forget_prompts()
    server = start("dense")
    assert ask(server, "b", prompt(50)).done.usage.cached_tokens == 0


def test_a_folder_that_cannot_be_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParams, match="prompt_cache_dir"):
        PromptCache(engine_of("dense"), limits(folder=tmp_path / "file"))


@pytest.mark.parametrize("edited", [None, "rope_theta", "weight", "tokenizer.json"])
def test_a_model_that_was_edited_finds_nothing_of_what_it_was(edited, tmp_path, tokenizer):
    # The last value of the widest weight: no sample of a few values sees it.
    folder = write_tiny(tmp_path / "model")

    def cached_tokens() -> int:
        engine = Engine(replace(load(folder), tokenizer=tokenizer))
        settings = SchedulerSettings(prompt_cache=limits(folder=tmp_path / "kv"))
        server = Served(engine, settings=settings)
        told = ask(server, "a", prompt(50))
        server.scheduler.close()
        return told.done.usage.cached_tokens

    assert cached_tokens() == 0
    if edited == "rope_theta":
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {edited: 500.0}))
    elif edited == "weight":
        (file,) = folder.glob("*.safetensors")
        weights = mx.load(str(file))
        name = max(weights, key=lambda name: weights[name].size)
        weights[name][-1, -1] += 1
        mx.save_safetensors(str(file), weights)
    elif edited is not None:
        (folder / edited).write_text((folder / edited).read_text() + "\n")
    assert cached_tokens() == (0 if edited else 49)
