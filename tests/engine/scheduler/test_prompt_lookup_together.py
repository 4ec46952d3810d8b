"""Drafts of several rows in one forward, which is the step of the rows without one (I1, I7)."""

import pytest

from engine.errors import InternalFault
from engine.kv.pool import CAPACITY_STEP
from engine.lookup.widths import WidthCosts
from tests.engine.rigs import begun
from tests.engine.scheduler.prompt_lookup_rigs import (
    COPY,
    Watch,
    alphabet,
    altered,
    drafter,
    drafting,
    params,
    served,
    ticks_until,
)


def test_one_forward_verifies_all_drafts_and_is_the_others_step(tokenizer):
    engine = alphabet(tokenizer, together=True)
    watch, one = Watch(engine), served(engine)
    told = [one.submit(str(i), params(COPY)) for i in range(2)]
    plain = one.submit("p", params((100,), 20))
    ticks_until(one, lambda: "verify" in watch.log)
    assert watch.log[-1] == "verify"
    assert watch.log.count("verify") == 1
    assert watch.rows[-1] == 3
    one.run()
    assert [row.tokens for row in told] == [[(3 + i) % 24 for i in range(60)]] * 2
    assert plain.tokens == list(range(20))
    assert plain.done.timings.draft_rounds == 0


@pytest.mark.parametrize(("costs", "forwards"), [((1.0, *[1.1] * 7), 1), (range(1, 9), 2)])
def test_a_forward_is_shared_only_where_that_is_cheaper(tokenizer, costs, forwards):
    engine = alphabet(tokenizer, together=True)
    priced = WidthCosts(tuple(float(cost) for cost in costs))
    watch, one = Watch(engine), served(engine, drafting(width_costs=priced))
    one.submit("a", params(COPY))
    one.submit("p", params((100,), 40))
    called: list[list[str]] = []
    while not one.scheduler.idle:
        called.append(watch.of_tick(one))
    assert (["submit", "collect", "verify"] in called) == (forwards == 2)
    assert (2 in watch.rows) == (forwards == 1)


def test_a_made_up_token_costs_its_row_the_drafter_and_the_others_nothing(tokenizer):
    engine = alphabet(tokenizer, together=True)
    one = served(engine)
    told, beside = one.submit("a", params(COPY, 60)), one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: drafter(one, "b") is not None)
    altered(drafter(one, "a"), propose=lambda self, *rest: (10**6,))
    one.run()
    assert told.tokens == beside.tokens == [(3 + i) % 24 for i in range(60)]
    assert told.done.timings.draft_rounds == 0 < beside.done.timings.draft_rounds


def test_what_a_shared_forward_raises_ends_its_rows_and_the_next_request_is_served(tokenizer):
    """I7."""
    engine = alphabet(tokenizer, together=True)
    one = served(engine)
    told = [one.submit(str(i), params(COPY, 60)) for i in range(2)]
    ticks_until(one, lambda: drafter(one, "1") is not None)
    verify, failed = engine.verify_together, []

    def fails(drafts):
        if len(drafts) == 2 and not failed:
            failed.append(True)
            raise AssertionError("a bug")
        return verify(drafts)

    engine.verify_together = fails
    one.run()
    assert [type(row.error) for row in told] == [InternalFault] * 2
    again = one.submit("c", params(COPY, 60))
    one.run()
    assert again.tokens == [(3 + i) % 24 for i in range(60)]


@pytest.mark.parametrize("bounds", [{"context": 512}, {"context": 250}], ids=str)
def test_padding_takes_no_kv_and_no_position_that_its_rows_would_not(tokenizer, bounds):
    """The longest row ends with the capacity, or with the context; beside it others draft."""
    engine = alphabet(tokenizer, together=True, **bounds)
    storage, watch = engine.choice.storage, Watch(engine)
    ends, furthest = [], []
    padded = storage.padded

    def noting(widths):
        furthest.append(max(storage._lengths) + max(widths.values()))
        return padded(widths)

    storage.padded = noting
    one = served(engine, settings={"kv_budget_tokens": 2 * CAPACITY_STEP})
    near = (100, *[200] * 233)
    tokens = min(CAPACITY_STEP, bounds["context"]) - 1 - len(near)
    plain = one.submit("p", params(near, tokens))
    ticks_until(one, lambda: plain.tokens)
    beside = one.submit("a", params(COPY, 220))
    while not one.scheduler.idle:
        one.tick()
        ends.append(storage.rows * storage.capacity)
    assert {1, 2} <= set(watch.rows)
    assert max(ends) == 2 * CAPACITY_STEP
    assert 0 < max(furthest) <= min(CAPACITY_STEP, bounds["context"])
    assert len(plain.tokens) == tokens
    assert beside.tokens == [(3 + i) % 24 for i in range(220)]


def test_a_round_that_padding_would_take_past_the_context_is_several(tokenizer):
    engine = alphabet(tokenizer, together=True, context=64)
    long, short = begun(engine, (*range(24), *range(24), *range(12)), COPY)
    outcomes = engine.verify_together({long: (), short: (4, 5, 6, 7, 8, 9)})
    assert [one.accepted for one in outcomes] == [0, 6]
    assert [len(one.steps) for one in outcomes] == [1, 7]
    assert engine.choice.storage._longest == [61, 34]
