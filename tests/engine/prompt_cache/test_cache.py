"""What the scheduler's rows take from the prompt cache and leave in it."""

import pytest

from engine.errors import EvalFailed, RewindFailed
from engine.events import Failed
from engine.prompt_cache.key import CacheUse
from tests.engine.inside import rows_of, storage_of
from tests.engine.prompt_cache.cache_rigs import (
    SYSTEM,
    ask,
    cache_of,
    cold_tokens,
    limits,
    params,
    prompt,
    served,
)
from tests.engine.rigs import Watched
from tests.engine.scheduler.scheduler_rigs import Clock
from tests.engine.transfer_rigs import KINDS

each_kind = pytest.mark.parametrize("kind", KINDS)
CUT = ("dense", "window as a mask")
WHOLE = ("ring", "recurrent")


@each_kind
def test_the_same_prompt_again_forwards_only_its_last_token(kind, tokenizer):
    # mlx-lm#1215: nothing is left to forward after an exact hit.
    server = served(kind, tokenizer)
    first, again = (ask(server, id_, prompt(50)) for id_ in "ab")
    assert first.done.usage.cached_tokens == 0
    assert again.done.usage.cached_tokens == again.done.timings.cache_n == 49
    assert again.done.timings.prompt_n == 1
    assert again.tokens == first.tokens == cold_tokens(server, prompt(50))


@each_kind
def test_the_same_prompt_of_concurrent_requests_is_written_alike(kind, tokenizer):
    server = served(kind, tokenizer)
    expected = ask(server, "first", prompt(50)).tokens
    told = [server.submit(id_, params(prompt(50))) for id_ in "abcd"]
    server.run()
    assert [one.tokens for one in told] == [expected] * 4
    assert [one.done.usage.cached_tokens for one in told] == [49] * 4


@each_kind
def test_a_prompt_that_is_all_cached_still_forwards_a_token(kind, tokenizer):
    server = served(kind, tokenizer)
    first = ask(server, "a", prompt(50))
    whole = prompt(50) + tuple(first.tokens)
    stored = whole[:-1]
    again = ask(server, "b", stored)
    assert again.done.timings.prompt_n >= 1
    assert again.done.usage.cached_tokens >= 49
    assert again.tokens == cold_tokens(server, stored)


@each_kind
def test_the_next_turn_reads_only_what_is_new(kind, tokenizer):
    server = served(kind, tokenizer)
    ids, new = prompt(50), (5, 6, 7, 8)
    first = ask(server, "a", ids)
    ids += tuple(first.tokens) + new
    second = ask(server, "b", ids)
    assert second.done.timings.prompt_n == 1 + len(new)
    assert second.tokens == cold_tokens(server, ids)


@pytest.mark.parametrize("kind", CUT)
def test_a_shared_beginning_is_taken_over_and_held_once(kind, tokenizer):
    server = served(kind, tokenizer)
    ask(server, "a", SYSTEM + prompt(20, 1))
    held = cache_of(server).stats()
    told = ask(server, "hi", (*SYSTEM, 104, 105))
    assert told.done.usage.cached_tokens == len(SYSTEM)
    assert told.tokens == cold_tokens(server, (*SYSTEM, 104, 105))
    assert cache_of(server).stats().tokens == held.tokens + 2 + 5


@pytest.mark.parametrize("kind", WHOLE)
def test_the_next_turn_continues_from_the_history_where_its_template_rewrote_the_answer(
    kind, tokenizer
):
    server = served(kind, tokenizer)
    history, marks = prompt(50), (1, 2, 3)
    ask(server, "a", history + marks, cache=CacheUse(history_tokens=50))
    told = ask(server, "b", (*history, 9, 9, 9, 9, *marks), cache=CacheUse(history_tokens=54))
    assert told.done.usage.cached_tokens == 50
    assert told.tokens == cold_tokens(server, (*history, 9, 9, 9, 9, *marks))


@each_kind
def test_who_opts_out_finds_nothing_and_leaves_nothing(kind, tokenizer):
    server = served(kind, tokenizer)
    ask(server, "a", prompt(50), cache=None)
    assert cache_of(server).stats().nbytes == 0
    ask(server, "b", prompt(50))
    assert ask(server, "c", prompt(50), cache=None).done.usage.cached_tokens == 0


@each_kind
@pytest.mark.parametrize("field", ["session", "adapter", "template"])
def test_scopes_share_nothing(kind, field, tokenizer):
    server = served(kind, tokenizer)
    mine, theirs = CacheUse(**{field: "mine"}), CacheUse(**{field: "theirs"})
    ask(server, "a", prompt(50), cache=mine)
    assert ask(server, "b", prompt(50), cache=theirs).done.usage.cached_tokens == 0
    assert ask(server, "c", prompt(50)).done.usage.cached_tokens == 0
    assert ask(server, "d", prompt(50), cache=mine).done.usage.cached_tokens == 49


def cancelled_after(server, id_, ids, ticks):
    """Cancel a request some ticks after its first token, or at once."""
    told = server.submit(id_, params(ids, written=40))
    while ticks and not told.tokens:
        server.tick()
    for _ in range(ticks - 1):
        server.tick()
    server.scheduler.cancel(id_)
    server.run()
    return told


@each_kind
def test_a_cancelled_answer_is_cached_as_far_as_it_was_reported(kind, tokenizer):
    server = served(kind, tokenizer)
    told = cancelled_after(server, "a", prompt(50), 3)
    whole = prompt(50) + tuple(told.tokens) + (1, 2)
    again = ask(server, "b", whole)
    # The last token told has no KV yet; a step in flight may not count.
    assert again.done.usage.cached_tokens == len(whole) - 3
    assert again.tokens == cold_tokens(server, whole)


@each_kind
def test_a_prompt_cancelled_while_it_is_read_is_not_cached(kind, tokenizer):
    server = served(kind, tokenizer)
    server.submit("a", params(prompt(50)))
    server.tick()
    assert not server.scheduler._rows["a"].is_decoding
    server.scheduler.cancel("a")
    server.run()
    assert cache_of(server).stats().nbytes == 0
    assert not rows_of(server.engine)


@each_kind
def test_an_answer_that_failed_is_not_cached(kind, tokenizer):
    server = served(kind, tokenizer)
    watched = Watched(server.engine)
    told = server.submit("a", params(prompt(50), written=40))
    while not told.tokens:
        server.tick()
    watched.fails_in = lambda call: True
    server.run()
    assert isinstance(told.last, Failed)
    assert cache_of(server).stats().nbytes == 0
    watched.fails_in = lambda call: False
    assert ask(server, "b", prompt(50)).tokens == cold_tokens(server, prompt(50))


@each_kind
def test_an_answer_of_no_finite_logits_is_not_cached(kind, tokenizer):
    server = served(kind, tokenizer)
    watched = Watched(server.engine)
    watched.spoils = lambda call, logits: logits * float("nan")
    assert isinstance(ask(server, "a", prompt(50)).last, Failed)
    assert cache_of(server).stats().nbytes == 0


@each_kind
def test_a_row_that_cannot_be_rewound_is_not_cached(kind, tokenizer, monkeypatch):
    server = served(kind, tokenizer)

    def refuse(slot, tokens):
        raise RewindFailed("no way back")

    told = server.submit("a", params(prompt(50), written=40))
    while not told.tokens:
        server.tick()
    monkeypatch.setattr(storage_of(server.engine), "rewind", refuse)
    server.scheduler.cancel("a")
    monkeypatch.undo()
    server.run()
    stats = cache_of(server).stats()
    assert (stats.nbytes, stats.counters.faults) == (0, 1)
    assert not rows_of(server.engine)


@each_kind
def test_a_copy_that_fails_costs_nobody_an_answer(kind, tokenizer, monkeypatch):
    # mlx-lm#1909: a failed extraction ended the thread that serves everyone.
    server = served(kind, tokenizer)
    neighbour = server.submit("neighbour", params(prompt(20, 1), written=30))

    def fail(*args):
        raise EvalFailed("out of memory")

    monkeypatch.setattr(storage_of(server.engine), "save", fail)
    told = ask(server, "a", prompt(50))
    assert told.done.finish == "length"
    assert len(neighbour.tokens) == 30
    assert cache_of(server).stats().nbytes == 0
    assert cache_of(server).stats().counters.faults > 0
    monkeypatch.undo()
    assert ask(server, "b", prompt(50)).tokens == told.tokens
    assert not rows_of(server.engine)


@each_kind
def test_kv_that_does_not_fit_is_forgone(kind, tokenizer, monkeypatch):
    server = served(kind, tokenizer)
    first = ask(server, "a", prompt(50))

    def refuse(slot, snapshot):
        raise ValueError("another shape")

    monkeypatch.setattr(storage_of(server.engine), "load", refuse)
    again = ask(server, "b", prompt(50))
    assert again.done.usage.cached_tokens == 0
    assert again.tokens == first.tokens


@each_kind
def test_a_backend_that_fails_under_a_takeover_ends_that_request_alone(
    kind, tokenizer, monkeypatch
):
    server = served(kind, tokenizer)
    first = ask(server, "a", prompt(50))

    def fail(slot, snapshot):
        raise EvalFailed("the device fell over")

    monkeypatch.setattr(storage_of(server.engine), "load", fail)
    assert isinstance(ask(server, "b", prompt(50)).last, Failed)
    monkeypatch.undo()
    assert cache_of(server).stats().nbytes == 0
    assert ask(server, "c", prompt(50)).tokens == first.tokens


def test_a_long_row_is_copied_run_by_run_between_the_steps_of_others(tokenizer):
    clock = Clock(1.0)  # each look takes a second, so a tick copies one run
    server = served("dense", tokenizer, clock=clock, chunk=64)
    neighbour = server.submit("neighbour", params(prompt(8, 1), written=60))
    told = server.submit("long", params(SYSTEM + prompt(250), written=2))
    seen = []
    while not server.scheduler.idle:
        server.tick()
        if told.is_over:
            seen.append((cache_of(server).stats().tokens, len(neighbour.tokens)))
    assert [tokens for tokens, _ in seen[:2]] == [256, 291]
    assert neighbour.tokens == cold_tokens(server, prompt(8, 1), written=60)
    assert not rows_of(server.engine)


def test_who_comes_while_a_row_is_copied_finds_all_of_it(tokenizer):
    server = served("dense", tokenizer, clock=Clock(1.0), chunk=64)
    ids = SYSTEM + prompt(250)
    told = server.submit("long", params(ids, written=2))
    while not told.is_over:
        server.tick()
    assert cache_of(server).is_copying
    assert ask(server, "again", ids).done.usage.cached_tokens == len(ids) - 1
    assert not cache_of(server).is_copying


@each_kind
def test_forgetting_frees_rows_that_are_copied_and_leaves_running_ones(kind, tokenizer):
    server = served(kind, tokenizer)
    ask(server, "a", prompt(50))
    told = server.submit("b", params(prompt(50), written=9))
    for _ in range(3):
        server.tick()
    server.scheduler.forget_prompts()
    assert cache_of(server).nbytes == 0
    server.run()
    assert told.tokens == cold_tokens(server, prompt(50), written=9)


def test_a_beginning_shorter_than_the_least_is_neither_used_nor_kept(tokenizer):
    server = served("dense", tokenizer, limits(min_tokens=32))
    ask(server, "a", prompt(20), written=5)
    assert cache_of(server).stats().nbytes == 0
    ask(server, "b", prompt(40))
    assert ask(server, "c", (*prompt(31), 1, 2, 3)).done.usage.cached_tokens == 0
    assert ask(server, "d", (*prompt(32), 1, 2, 3)).done.usage.cached_tokens == 32


def test_what_is_known_of_a_prompt_counts_as_read_when_it_is_admitted(tokenizer):
    server = served("dense", tokenizer)

    def to_read(id_: str) -> int:
        """What admission counts for a request that was just submitted."""
        (waiting,) = server.scheduler._state().waiting
        assert waiting.id == id_
        server.run()
        return waiting.prefill_tokens

    server.submit("cold", params(prompt(200)))
    assert to_read("cold") == 200
    server.submit("warm", params(prompt(200)))
    assert to_read("warm") == 1
    server.submit("opted out", params(prompt(200)), cache=None)
    assert to_read("opted out") == 200


def test_counts_report_what_was_found(tokenizer):
    server = served("dense", tokenizer)
    ask(server, "a", prompt(50))
    ask(server, "b", prompt(50))
    counters = server.scheduler.stats().cache.counters
    assert (counters.lookups, counters.hits) == (2, 1)
    assert (counters.lookup_tokens, counters.hit_tokens) == (100, 49)
    assert (counters.exports, counters.exported_tokens) == (2, 55)


def test_sixty_four_conversations_that_overflow_the_cache_stay_under_its_bound(tokenizer):
    bound = 400_000
    server = served("dense", tokenizer, limits(max_bytes=bound))
    texts = [SYSTEM + prompt(12, i) for i in range(64)]
    for turn in range(2):
        told = {}
        for i, ids in enumerate(texts):
            told[i] = server.submit(f"{turn}/{i}", params(ids, written=2))
            if i % 4 == 3:
                while not server.scheduler.idle:
                    server.tick()
                    assert cache_of(server).nbytes <= bound
        texts = [ids + tuple(told[i].tokens) + (i,) for i, ids in enumerate(texts)]
    stats = cache_of(server).stats()
    assert stats.counters.evicted_bytes > 0
    assert stats.counters.faults == 0
    # The system prompt is in use by all of them, and stays.
    assert stats.counters.hits >= 2 * 64 - 4
