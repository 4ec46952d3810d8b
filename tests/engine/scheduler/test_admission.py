import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ContextOverflow, KvBudgetExceeded
from engine.outcome import SeqId
from engine.params import SequenceParams
from engine.scheduler.admission import (
    PrefillShare,
    WaitReason,
    admit,
    context_bound,
    room_tokens,
)
from engine.scheduler.budget import KvBudget, KvGeometry, KvShape
from engine.scheduler.queue import Priority
from engine.scheduler.state import Limits, RowState, TickState, WaitingState

GEOMETRY = KvGeometry((1, 2, 3, 4, 6, 8), 256)


def waits(id_: str, prefill: int = 10, room: int = 100) -> WaitingState:
    return WaitingState(id_, Priority.NORMAL, prefill, room)


def runs(id_: str, room: int = 100, *, left: int = 0, is_long: bool = False) -> RowState:
    return RowState(id_, SeqId(0), Priority.NORMAL, 10, room, prefill_left=left, is_long=is_long)


def state(*waiting: WaitingState, rows: tuple[RowState, ...] = (), **kw) -> TickState:
    limits = Limits(parallel=kw.pop("parallel", 4), short_chunks=2, short_tokens=0)
    return TickState(limits, rows, waiting, chunk_tokens=32, **kw)


def share(chunks: int = 1, chunk: int = 32) -> PrefillShare:
    return PrefillShare(chunk, chunks)


def entering(found: TickState, left: PrefillShare | None = None) -> list[str]:
    return [newcomer.waiting.id for newcomer in admit(found, left or share()).admitted]


def reason(found: TickState) -> tuple[str | None, WaitReason | None]:
    admission = admit(found, share())
    blocked = admission.blocked
    return None if blocked is None else blocked.id, admission.reason


def test_who_comes_first_enters_first_up_to_the_slots():
    found = state(waits("a"), waits("b"), waits("c"), rows=(runs("x"), runs("y")))
    assert entering(found) == ["a", "b"]
    assert reason(found) == ("c", WaitReason.NO_SLOT)


def test_an_empty_queue_blocks_nobody():
    assert reason(state()) == (None, None)


def test_a_tick_takes_about_one_chunk_of_short_prompts():
    found = state(waits("a", 20), waits("b", 20))
    assert entering(found) == ["a"]
    assert reason(found) == ("b", WaitReason.PREFILL)
    assert entering(state(waits("a", 16), waits("b", 16))) == ["a", "b"]


def test_an_untouched_share_takes_a_prompt_of_several_chunks():
    assert entering(state(waits("a", 60))) == ["a"]


def test_a_share_that_is_spent_takes_nobody():
    spent = share()
    assert spent.take(30)
    assert entering(state(waits("a", 5)), spent) == []


def test_a_share_of_several_chunks_takes_more():
    assert entering(state(waits("a", 20), waits("b", 20), waits("c", 20)), share(2)) == [
        "a",
        "b",
        "c",
    ]


def test_the_shortest_prompt_counts_an_eighth_of_a_chunk():
    found = state(*[waits(str(i), 1) for i in range(12)], parallel=20)
    assert len(entering(found)) == 8


def test_without_chunks_all_enter():
    found = TickState(Limits(), (), (waits("a", 9999), waits("b", 9999)), chunk_tokens=0)
    assert entering(found, share(chunk=0)) == ["a", "b"]


def test_a_prompt_of_too_many_chunks_is_parked():
    admission = admit(state(waits("a", 64), waits("b", 65)), share(2))
    assert [(e.waiting.id, e.is_long) for e in admission.admitted] == [("a", False), ("b", True)]


def test_only_one_long_prompt_is_long_and_short_ones_pass_the_next():
    found = state(waits("long1", 99), waits("long2", 99), waits("short"))
    assert entering(found) == ["long1", "short"]
    assert reason(found) == ("long2", WaitReason.PREFILL)
    long = runs("p", left=50, is_long=True)
    assert entering(state(waits("long", 99), waits("short"), rows=(long,))) == ["short"]


def test_a_long_prompt_that_is_read_parks_nobody_else():
    decoding = runs("p", is_long=True)
    assert entering(state(waits("long", 99), rows=(decoding,))) == ["long"]


def test_who_lacks_kv_blocks_those_behind_it():
    budget = KvBudget(GEOMETRY, 1024)
    found = state(waits("big", room=1000), waits("small"), rows=(runs("x"),), budget=budget)
    assert entering(found) == []
    assert reason(found) == ("big", WaitReason.NO_KV)


def test_entrants_of_one_tick_share_the_budget():
    budget = KvBudget(GEOMETRY, 2 * 256)
    found = state(waits("a"), waits("b"), waits("c"), budget=budget)
    assert entering(found) == ["a", "b"]


def test_what_the_pool_holds_already_counts():
    budget = KvBudget(GEOMETRY, 2 * 1024)
    wide = KvShape(2, 1024)
    found = state(waits("a"), rows=(runs("x"), runs("y")), budget=budget, shape=wide)
    assert reason(found) == ("a", WaitReason.NO_KV)
    assert entering(state(waits("a"), rows=(runs("x"),), budget=budget, shape=wide)) == ["a"]


@given(
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 900)), max_size=10),
    st.lists(st.integers(1, 900), max_size=3),
    st.integers(1, 6),
    st.integers(256, 8192),
)
def test_admission_keeps_slots_budget_and_order(queue, running, parallel, positions):
    budget = KvBudget(GEOMETRY, positions)
    rows = tuple(runs(f"r{i}", room) for i, room in enumerate(running))
    waiting = tuple(waits(str(i), *one) for i, one in enumerate(queue))
    found = state(*waiting, rows=rows, parallel=parallel, budget=budget)
    admission = admit(found, share())
    entered = admission.admitted
    assert len(rows) + len(entered) <= max(parallel, len(rows))
    if entered:
        room = [*running, *(newcomer.waiting.room_tokens for newcomer in entered)]
        assert budget.fits(room, KvShape())
    assert sum(newcomer.is_long for newcomer in entered) <= 1
    names = [int(newcomer.waiting.id) for newcomer in entered]
    assert names == sorted(names)
    skipped = [w for w in waiting[: names[-1] if names else 0] if int(w.id) not in names]
    assert all(one.prefill_tokens > 64 for one in skipped)
    assert (admission.blocked is None) == (len(entered) == len(waiting))


# -- what can never run


def params(prompt: int, **kw) -> SequenceParams:
    return SequenceParams(tuple([1] * prompt), **kw)


def test_a_prompt_that_fills_the_context_is_refused_with_both_counts():
    with pytest.raises(ContextOverflow) as refused:
        context_bound(params(64), 64, None)
    assert (refused.value.prompt_tokens, refused.value.context_tokens) == (64, 64)
    assert context_bound(params(63), 64, None) == 64


def test_a_request_s_own_bound_counts_when_it_is_smaller():
    assert context_bound(params(5, context_tokens=32), 64, None) == 32
    with pytest.raises(ContextOverflow):
        context_bound(params(32, context_tokens=32), 64, None)


def test_a_prompt_that_no_budget_can_ever_hold_is_refused_by_name():
    with pytest.raises(KvBudgetExceeded) as refused:
        context_bound(params(300), 1000, KvBudget(GEOMETRY, 256))
    assert (refused.value.needed_tokens, refused.value.budget_tokens) == (301, 256)


def test_the_budget_bounds_a_row_as_the_context_does():
    assert context_bound(params(5), 1000, KvBudget(GEOMETRY, 300)) == 256
    assert context_bound(params(5), 1000, KvBudget(GEOMETRY)) == 1000


def test_room_is_reserved_to_the_end_of_the_answer():
    assert room_tokens(params(10, max_tokens=5), 10, bound=100, growth_tokens=None) == 15
    assert room_tokens(params(10, max_tokens=500), 10, bound=100, growth_tokens=None) == 100
    assert room_tokens(params(10), 10, bound=100, growth_tokens=None) == 100


def test_with_preemption_room_is_what_is_held_and_a_step():
    assert room_tokens(params(10), 20, bound=1000, growth_tokens=256) == 276
    assert room_tokens(params(10, max_tokens=15), 20, bound=1000, growth_tokens=256) == 25
