from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.outcome import SeqId
from engine.scheduler.admission import WaitReason
from engine.scheduler.budget import KvBudget, KvGeometry, KvShape
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority
from engine.scheduler.state import Limits, RowState, TickState, WaitingState
from engine.scheduler.tick import TickPlan, plan_tick, steps_since_chunk

CHUNK = 32
GEOMETRY = KvGeometry((1, 2, 3, 4, 6, 8), 256)


def decodes(id_: str, seq: int = 0, **kw) -> RowState:
    kw = {"priority": Priority.NORMAL, "tokens": 10, "room_tokens": 100, **kw}
    return RowState(id_, SeqId(seq), **kw)


def reads(id_: str, left: int, seq: int = 0, *, is_long: bool = False, **kw) -> RowState:
    return decodes(id_, seq, prefill_left=left, is_long=is_long, **kw)


def waits(id_: str, prefill: int = 10, *, priority: Priority = Priority.NORMAL) -> WaitingState:
    return WaitingState(id_, priority, prefill, 100)


def state(*rows: RowState, waiting: tuple[WaitingState, ...] = (), **kw) -> TickState:
    names = Limits.__dataclass_fields__
    limits = Limits(
        **{"short_chunks": 2, "short_tokens": 0, **{k: kw.pop(k) for k in list(kw) if k in names}}
    )
    return TickState(limits, rows, waiting, chunk_tokens=kw.pop("chunk_tokens", CHUNK), **kw)


def granted(plan: TickPlan) -> list[tuple[str, int]]:
    return [(grant.id, grant.tokens) for grant in plan.prefill]


def test_nothing_to_do_is_an_empty_plan():
    assert plan_tick(state()).is_empty
    assert plan_tick(state(decodes("a", can_step=False))).is_empty


def test_rows_that_want_a_step_decode():
    plan = plan_tick(state(decodes("a"), decodes("b", can_step=False), decodes("c")))
    assert plan.decode == ("a", "c")


def test_a_plan_may_name_decode_rows_and_a_prefill_chunk():
    plan = plan_tick(state(decodes("a"), reads("b", 20)))
    assert (plan.decode, granted(plan)) == (("a",), [("b", 20)])
    assert plan.is_mixed


@pytest.mark.parametrize(
    ("rows", "waiting", "draws"),
    [
        ((decodes("a"), reads("b", 20)), (), [True]),
        ((decodes("a"),), (waits("b", 20),), [True]),
        ((decodes("a", can_step=False), reads("b", 20)), (), [False]),
        ((*map(decodes, "acde"), reads("b", 20)), (), [True]),
        ((*map(decodes, "acdef"), reads("b", 20)), (), [False]),
        ((reads("b", 20),), (), [False]),
        ((decodes("a"), reads("b", 16), reads("c", 16)), (), [False, False]),
        ((decodes("a"), reads("b", 999, is_long=True)), (), [False]),
    ],
)
def test_a_prompt_that_comes_alone_to_a_few_rows_that_step_draws(rows, waiting, draws):
    kw = {"waiting": waiting, "steps_since_chunk": 99}
    plan = plan_tick(state(*rows, steps_are_wide=True, **kw))
    assert [grant.draws for grant in plan.prefill] == draws
    plan = plan_tick(state(*rows, **kw))
    assert not any(grant.draws for grant in plan.prefill)


def test_a_short_prompt_is_read_in_the_tick_that_admits_it_beside_a_long_one():
    long = reads("long", 999, is_long=True)
    plan = plan_tick(state(decodes("a"), long, waiting=(waits("b", 20),)))
    assert [newcomer.waiting.id for newcomer in plan.admitted] == ["b"]
    assert granted(plan) == [("b", 20)]
    assert plan.decode == ("a",)


def test_short_prompts_share_one_chunk_s_worth_of_a_tick_beside_many_rows():
    many = [decodes(f"r{i}") for i in range(4)]
    plan = plan_tick(state(*many, reads("a", 10), reads("b", 20), reads("c", 10)))
    assert granted(plan) == [("a", 10), ("b", 20)]


@pytest.mark.parametrize(
    ("decoding", "coming", "chunks"),
    [(0, 1, 2), (0, 9, 4), (1, 1, 2), (1, 2, 4), (2, 2, 2), (4, 4, 2), (4, 3, 1), (9, 1, 1)],
)
def test_a_burst_of_prompts_to_few_rows_is_read_faster(decoding: int, coming: int, chunks: int):
    """However many of them still wait."""
    rows = [decodes(f"r{i}") for i in range(decoding)]
    reading = [reads(f"s{i}", CHUNK) for i in range((coming + 1) // 2)]
    waiting = tuple(waits(f"w{i}", CHUNK) for i in range(coming // 2))
    plan = plan_tick(state(*rows, *reading, waiting=waiting, parallel=20))
    assert len(plan.prefill) == min(chunks, coming)


def test_a_short_prompt_of_several_chunks_gets_one_a_tick_whoever_decodes():
    plan = plan_tick(state(decodes("x"), reads("a", 50)))
    assert granted(plan) == [("a", CHUNK)]


def test_a_prompt_that_does_not_fit_the_rest_of_the_share_waits_for_the_next_tick():
    many = [decodes(f"r{i}") for i in range(4)]
    plan = plan_tick(state(*many, reads("a", 20), waiting=(waits("b", 20),), parallel=9))
    assert granted(plan) == [("a", 20)]
    assert plan.admitted == ()
    assert plan.blocked is WaitReason.PREFILL


def test_chunk_zero_reads_whole_prompts():
    plan = plan_tick(state(reads("a", 999), reads("b", 9999), chunk_tokens=0))
    assert granted(plan) == [("a", 999), ("b", 9999)]


def test_a_long_prompt_gets_a_chunk_a_tick_while_nobody_decodes():
    long = reads("long", 999, is_long=True)
    assert granted(plan_tick(state(long))) == [("long", CHUNK)]
    assert granted(plan_tick(state(long, decodes("held", can_step=False)))) == [("long", CHUNK)]


def test_a_long_prompt_waits_for_its_interval_while_rows_decode():
    long = reads("long", 999, is_long=True)
    for steps in range(3):
        found = state(long, decodes("a"), grant_interval=4, steps_since_chunk=steps)
        assert granted(plan_tick(found)) == []
    found = state(long, decodes("a"), grant_interval=4, steps_since_chunk=3)
    assert granted(plan_tick(found)) == [("long", CHUNK)]


@pytest.mark.parametrize(
    ("tokens", "part", "interval"),
    [(32, 1.0, 8), (16, 0.5, 4), (16, 0.6, 5), (8, 0.01, 1), (99, 1.0, 8)],
)
def test_a_chunk_beside_rows_that_decode_comes_sooner_the_less_time_it_takes(
    tokens: int, part: float, interval: int
):
    long = reads("long", 999, is_long=True)
    limits = {"grant_interval": 8, "interleaved_tokens": tokens, "interleaved_share": part}
    tokens = min(tokens, CHUNK)
    for steps in range(interval):
        found = state(long, decodes("a"), steps_since_chunk=steps, **limits)
        due = [("long", tokens)] if steps == interval - 1 else []
        assert granted(plan_tick(found)) == due
    alone = state(long, decodes("held", can_step=False), **limits)
    assert granted(plan_tick(alone)) == [("long", CHUNK)]


def test_a_smaller_chunk_gives_way_to_a_short_prompt_once_too():
    long, short = reads("long", 999, is_long=True), reads("b", 10)
    beside = {"interleaved_tokens": 8, "interleaved_share": 0.25}
    due = state(long, decodes("a"), short, grant_interval=8, steps_since_chunk=1, **beside)
    assert granted(plan_tick(due)) == [("b", 10)]
    assert granted(plan_tick(replace(due, steps_since_chunk=2))) == [("b", 10), ("long", 8)]


def test_only_a_long_chunk_beside_rows_that_decode_waits_until_the_events_are_told():
    long, short = reads("long", 999, is_long=True), reads("b", 10)
    found = state(long, decodes("a"), short, grant_interval=1, steps_since_chunk=9)
    assert [grant.is_interleaved for grant in plan_tick(found).prefill] == [False, True]
    alone = replace(found, rows=(long, short))
    assert [grant.is_interleaved for grant in plan_tick(alone).prefill] == [False, False]


def test_a_prompt_in_one_chunk_stays_one_beside_rows_that_decode():
    found = state(
        decodes("a"), reads("long", 999, is_long=True), chunk_tokens=0, interleaved_tokens=0,
        grant_interval=4, steps_since_chunk=3,
    )  # fmt: skip
    assert granted(plan_tick(found)) == [("long", 999)]


def test_a_due_chunk_gives_way_to_a_short_prompt_once():
    long, short = reads("long", 999, is_long=True), reads("b", 10)
    due = state(long, decodes("a"), short, grant_interval=4, steps_since_chunk=3)
    assert granted(plan_tick(due)) == [("b", 10)]
    overdue = replace(due, steps_since_chunk=4)
    assert granted(plan_tick(overdue)) == [("b", 10), ("long", CHUNK)]


def test_interval_0_gives_no_chunk_while_rows_decode():
    long = reads("long", 999, is_long=True)
    found = state(long, decodes("a"), grant_interval=0, steps_since_chunk=10**6)
    assert granted(plan_tick(found)) == []
    assert granted(plan_tick(replace(found, rows=(long,)))) == [("long", CHUNK)]


def test_a_long_prompt_has_its_first_chunk_when_it_enters():
    found = state(decodes("a"), waiting=(waits("long", 999),), steps_since_chunk=15)
    assert granted(plan_tick(found)) == [("long", CHUNK)]


def test_the_next_long_prompt_waits_out_the_interval_of_the_one_before():
    found = state(decodes("a"), waiting=(waits("long", 999),), steps_since_chunk=2)
    assert granted(plan_tick(found)) == []


def test_a_request_that_waits_never_keeps_rows_from_decoding():
    budget = KvBudget(GEOMETRY, 256)
    found = state(decodes("a"), waiting=(waits("b"), waits("c")), budget=budget)
    plan = plan_tick(found)
    assert plan.decode == ("a",)
    assert plan.blocked is WaitReason.NO_KV


# -- preemption

PREEMPTING = {"preemption": PreemptionPolicy.LONGEST_FIRST}


def test_nobody_is_preempted_unless_it_is_on():
    high = waits("h", priority=Priority.HIGH)
    assert plan_tick(state(decodes("a"), waiting=(high,), parallel=1)).preempt == ()


def test_a_higher_priority_that_waits_takes_a_slot():
    high = waits("h", priority=Priority.HIGH)
    rows = decodes("a", 0, tokens=5), decodes("b", 1, tokens=9)
    plan = plan_tick(state(*rows, waiting=(high,), parallel=2, **PREEMPTING))
    assert plan.preempt == ("b",)
    assert plan.decode == ("a",)
    assert plan.admitted == ()


def test_an_equal_takes_nothing():
    plan = plan_tick(state(decodes("a"), waiting=(waits("b"),), parallel=1, **PREEMPTING))
    assert plan.preempt == ()
    assert plan.decode == ("a",)


def test_a_row_that_is_read_gives_way_too_and_gets_no_chunk():
    high = waits("h", priority=Priority.HIGH)
    plan = plan_tick(state(reads("a", 50), waiting=(high,), parallel=1, **PREEMPTING))
    assert plan.preempt == ("a",)
    assert plan.prefill == ()


def test_rows_that_outgrow_the_budget_make_the_longest_leave():
    rows = (
        decodes("a", 0, tokens=255, room_tokens=500),
        decodes("b", 1, tokens=20, room_tokens=276),
    )
    found = state(*rows, budget=KvBudget(GEOMETRY, 512), shape=KvShape(2, 256), **PREEMPTING)
    assert plan_tick(found).preempt == ("a",)
    calm = replace(found, rows=(replace(rows[0], tokens=254), rows[1]))
    assert plan_tick(calm).preempt == ()


def test_room_that_the_next_step_frees_is_not_made_twice():
    """A pool drops rows at the next step only; until then the head just waits."""
    high = waits("h", priority=Priority.HIGH)
    budget = KvBudget(GEOMETRY, 4 * 256)
    found = state(decodes("a"), waiting=(high,), budget=budget, shape=KvShape(4, 512), **PREEMPTING)
    plan = plan_tick(found)
    assert plan.blocked is WaitReason.NO_KV
    assert plan.preempt == ()


# -- bounds over many ticks


def ticks(
    found: TickState, arrivals: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[TickState, TickPlan]]:
    """Carry plans out on paper: chunks are read, nobody finishes decoding.

    Args:
        found: where it begins.
        arrivals: tick and prompt length of requests that come later.
    """
    for number in count():
        new = [waits(f"s{i}", size) for i, (at, size) in enumerate(arrivals) if at == number]
        found = replace(found, waiting=(*found.waiting, *new))
        plan = plan_tick(found)
        yield found, plan
        rows = {row.id: row for row in found.rows}
        for newcomer in plan.admitted:
            waiting = newcomer.waiting
            rows[waiting.id] = reads(waiting.id, waiting.prefill_tokens, is_long=newcomer.is_long)
        for grant in plan.prefill:
            left = rows[grant.id].prefill_left - grant.tokens
            rows[grant.id] = replace(rows[grant.id], prefill_left=max(0, left))
        entered = {newcomer.waiting.id for newcomer in plan.admitted}
        found = replace(
            found,
            rows=tuple(rows.values()),
            waiting=tuple(one for one in found.waiting if one.id not in entered),
            steps_since_chunk=steps_since_chunk(found, plan),
        )


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 32)), max_size=20),
)
@pytest.mark.parametrize("neighbours", [0, 1])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_long_prompt_of_c_chunks_is_read_within_c_times_interval_plus_1_ticks(
    parts: int, neighbours: int, chunks: int, interval: int, arrivals: list[tuple[int, int]]
):
    """Whatever short prompts arrive meanwhile; each part of a chunk may come a step later."""
    chunks += 2
    rows = tuple(decodes(f"r{i}") for i in range(neighbours))
    found = state(
        *rows,
        waiting=(waits("long", chunks * CHUNK),),
        grant_interval=interval,
        interleaved_tokens=CHUNK // parts,
        interleaved_share=1 / parts,
        parallel=50,
        steps_since_chunk=interval,
    )
    taken = 0
    for now, _ in ticks(found, arrivals):
        row = next((row for row in now.rows if row.id == "long"), None)
        if row is not None and not row.prefill_left:
            break
        taken += 1
    assert taken <= chunks * parts * (-(-interval // parts) + 1)


@pytest.mark.parametrize(("parts", "interval"), [(1, 8), (4, 2)])
def test_a_long_prompt_costs_each_decode_row_one_chunk_an_interval(parts: int, interval: int):
    part = CHUNK // parts
    found = state(
        decodes("a"), reads("long", 10 * part, is_long=True),
        grant_interval=8, interleaved_tokens=part, interleaved_share=1 / parts,
    )  # fmt: skip
    chunks = []
    for _, (_, plan) in zip(range(10 * interval + 1), ticks(found), strict=False):
        assert plan.decode[0] == "a"
        chunks.append(bool(plan.prefill))
    gaps = [i for i, one in enumerate(chunks) if one]
    assert [b - a for a, b in pairwise(gaps)] == [interval] * 9


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 4))
def test_every_request_is_read_in_the_end(prompts: list[int], parallel: int):
    waiting = tuple(waits(str(i), tokens) for i, tokens in enumerate(prompts))
    found = state(waiting=waiting, parallel=parallel + len(prompts), grant_interval=3)
    for _, (now, _) in zip(range(2000), ticks(found), strict=False):
        if not now.waiting and not any(row.prefill_left for row in now.rows):
            return
    raise AssertionError("somebody is never read")
