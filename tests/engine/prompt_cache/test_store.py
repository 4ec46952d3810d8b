"""What is held, under which bound, and what goes first."""

import random

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.storage import RowSnapshot
from engine.prompt_cache.key import CacheScope, CacheUse
from engine.prompt_cache.limits import CacheCounters, CacheLimits
from engine.prompt_cache.store import KvStore
from tests.engine.scheduler.scheduler_rigs import Clock

TOKEN_BYTES = 8
"""One layer of keys and values, a float32 each."""


def scope(name: str = "") -> CacheScope:
    return CacheScope.of(None, CacheUse(session=name))  # type: ignore[arg-type]


def kv_of(ids: tuple[int, ...], start: int = 0, *, whole: bool = False) -> RowSnapshot:
    """KV whose values are the ids, so that a wrong run shows."""
    array = mx.array(ids[start:], mx.float32).reshape(1, 1, -1, 1)
    return RowSnapshot(len(ids) - start, ((array, array),), is_whole=whole)


def store(*, cuts: bool = True, clock: Clock | None = None, **limits) -> KvStore:
    bounds = CacheLimits(**{"min_tokens": 1, **limits})
    return KvStore(bounds, CacheCounters(), clock or Clock(), cuts=cuts)


def put(held: KvStore, ids: tuple[int, ...], name: str = "", run: int = 4) -> bool:
    """Offer a text run by run; whether all of it is kept."""
    while (start := held.covered(scope(name), ids)) < len(ids):
        stop = min(len(ids), (start // run + 1) * run)
        if not held.put_run(scope(name), ids[:stop], kv_of(ids[:stop], start)):
            return False
    return True


def found(held: KvStore, ids: tuple[int, ...], name: str = "") -> list[float]:
    """The ids that the found KV is of."""
    kv = held.find(scope(name), ids)
    return [] if kv is None else kv.layers[0][0].reshape(-1).tolist()


def test_what_two_texts_share_is_held_once():
    held = store()
    put(held, (1, 2, 3, 4, 5, 6))
    put(held, (1, 2, 3, 7, 8))
    assert held.tokens == 8
    assert held.nbytes == 8 * TOKEN_BYTES
    assert held.entries == 2
    assert found(held, (1, 2, 3, 7, 8, 9)) == [1, 2, 3, 7, 8]
    assert found(held, (1, 2, 3, 4, 5, 6)) == [1, 2, 3, 4, 5, 6]


def test_a_text_that_continues_from_another_is_one_with_it():
    held = store()
    put(held, (1, 2, 3))
    put(held, (1, 2, 3, 4, 5))
    assert held.entries == 1


def test_what_was_not_used_for_longest_goes_first():
    held = store(max_bytes=12 * TOKEN_BYTES, clock=Clock(1.0))
    for first in (1, 2, 3):
        put(held, (first, 0, 0, 0))
    found(held, (1, 0, 0, 0))
    put(held, (4, 0, 0, 0))
    assert [len(found(held, (first, 0, 0, 0))) for first in (1, 2, 3, 4)] == [4, 0, 4, 4]


def test_the_end_of_a_text_goes_before_its_beginning():
    held = store(max_bytes=12 * TOKEN_BYTES, clock=Clock(1.0))
    put(held, (1, 2, 3, 4, 5, 6, 7, 8))
    put(held, (9, 0, 0, 0, 9, 0, 0, 0))
    assert found(held, (1, 2, 3, 4, 5, 6)) == [1, 2, 3, 4]
    assert len(found(held, (9, 0, 0, 0, 9, 0, 0, 0))) == 8


def test_of_a_text_larger_than_the_bound_the_beginning_is_kept():
    held = store(max_bytes=8 * TOKEN_BYTES)
    assert not put(held, tuple(range(20)))
    assert held.nbytes == 8 * TOKEN_BYTES
    assert found(held, tuple(range(20))) == list(range(8))


def test_no_more_texts_are_held_than_allowed():
    held = store(max_entries=2, clock=Clock(1.0))
    for first in (1, 2, 3):
        put(held, (first, 0, 0, 0, 0, 0))
    assert held.entries == 2
    assert [len(found(held, (first, 0, 0, 0))) for first in (1, 2, 3)] == [0, 4, 4]


def test_what_nobody_used_for_too_long_is_dropped():
    clock = Clock()
    held = store(ttl_s=10.0, clock=clock)
    put(held, (1, 2, 3))
    clock.now_s = 9.0
    assert found(held, (1, 2, 3)) == [1, 2, 3]
    clock.now_s = 19.5
    assert found(held, (1, 2, 3)) == []
    assert (held.nbytes, held.entries) == (0, 0)


def test_scopes_find_only_their_own():
    held = store()
    put(held, (1, 2, 3), "mine")
    assert found(held, (1, 2, 3), "theirs") == []
    assert found(held, (1, 2, 3), "mine") == [1, 2, 3]


def test_whole_kv_is_found_only_by_a_text_that_holds_all_of_it():
    held = store(cuts=False)
    for ids in ((1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 9)):
        held.put_whole(scope(), ids, kv_of(ids, whole=True))
    assert held.entries == 3
    assert found(held, (1, 2, 3, 4, 7)) == [1, 2, 3]
    assert found(held, (1, 2, 3, 4, 5, 6)) == [1, 2, 3, 4, 5]
    assert found(held, (1, 2)) == []


def test_whole_kv_of_a_shorter_text_may_go_while_the_longer_stays():
    held = store(cuts=False, max_bytes=9 * TOKEN_BYTES, clock=Clock(1.0))
    for ids in ((1, 2, 3), (1, 2, 3, 4, 5), (7, 8)):
        held.put_whole(scope(), ids, kv_of(ids, whole=True))
    assert found(held, (1, 2, 3, 4)) == []
    assert found(held, (1, 2, 3, 4, 5)) == [1, 2, 3, 4, 5]


def test_clearing_leaves_nothing():
    held = store()
    put(held, (1, 2, 3))
    held.clear()
    assert (held.nbytes, held.tokens, held.entries) == (0, 0, 0)
    assert found(held, (1, 2, 3)) == []
    assert put(held, (1, 2, 3))


@pytest.mark.parametrize("cuts", [True, False])
@given(seed=st.integers(0, 10**6), room=st.integers(5, 60), entries=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_what_is_found_is_right_and_the_books_are_kept(cuts, seed, room, entries):
    chance = random.Random(seed)
    held = store(cuts=cuts, max_bytes=room * TOKEN_BYTES, max_entries=entries, clock=Clock(1.0))
    for _ in range(30):
        ids = tuple(chance.randrange(2) for _ in range(chance.randrange(1, 14)))
        name = chance.choice("ab")
        if chance.random() < 0.5:
            got = found(held, ids, name)
            assert got == list(ids[: len(got)])
            assert len(got) == held.covered(scope(name), ids)
        elif cuts:
            put(held, ids, name)
        else:
            held.put_whole(scope(name), ids, kv_of(ids, whole=True))
        values = [node.value for node in held._recent]
        assert held.nbytes == sum(value.kv.nbytes for value in values) <= room * TOKEN_BYTES
        assert held.tokens == sum(value.kv.tokens for value in values)
        leaves = [node for node in held._recent if not (cuts and node.children)]
        assert held.entries == len(leaves) <= entries
        if cuts and held._recent:
            assert not next(iter(held._recent)).children
