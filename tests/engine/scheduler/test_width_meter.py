"""What drafts cost is measured once, on the first row that may draft, and leaves it as it was."""

import logging

import pytest

from engine.errors import EvalFailed, InvalidParams
from engine.lookup.widths import WidthCosts
from engine.scheduler.settings import LookupSettings
from tests.engine.rigs import Watched
from tests.engine.scheduler.prompt_lookup_rigs import (
    COPY,
    PLAIN,
    alphabet,
    drafting,
    endless,
    lookups,
    params,
    served,
)

CHEAP = WidthCosts((1.0, 1.1, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4))
DEAR = WidthCosts(tuple(float(width) for width in range(1, 9)))


def widths(watched: Watched) -> list[int]:
    return [fed.shape[1] for fed in watched.fed]


@pytest.mark.parametrize(
    ("builds_kernels", "policy", "measured"),
    [
        (True, "auto", set(range(1, 9))),
        (True, "fixed", set(range(1, 9))),
        (False, "auto", {1, 2, 4, 8}),
    ],
)
def test_widths_are_run_once_before_the_first_token(tokenizer, builds_kernels, policy, measured):
    engine = endless(tokenizer)
    watched = Watched(engine)
    one = served(engine, drafting(policy, builds_kernels=builds_kernels))
    told = one.submit("a", params(PLAIN, 12))
    one.tick()
    assert not told.tokens
    assert measured <= set(widths(watched))
    assert lookups(one).width_costs is not None
    one.run()
    watched.fed.clear()
    again = one.submit("b", params(PLAIN, 12))
    one.run()
    assert set(widths(watched)) == {1}
    assert told.tokens == again.tokens == list(range(4, 16))


@pytest.mark.parametrize(
    ("lookup", "tokens"),
    [
        (drafting("fixed"), 40),
        (drafting("graded"), 40),
        (drafting("auto", width_costs=CHEAP), 40),
    ],
)
def test_nothing_is_measured_that_nobody_needs(tokenizer, lookup, tokens):
    engine = endless(tokenizer)
    watched, one = Watched(engine), served(engine, lookup)
    one.submit("a", params(PLAIN, tokens))
    one.run()
    assert set(widths(watched)) == {1}


def test_a_row_that_may_not_draft_is_not_measured_on(tokenizer):
    engine = endless(tokenizer)
    watched, one = Watched(engine), served(engine, drafting("auto"))
    one.submit("a", params(PLAIN, 20), is_speculative=False)
    one.run()
    assert set(widths(watched)) == {1}
    one.submit("b", params(PLAIN, 20))
    one.run()
    assert 8 in widths(watched)


def test_a_short_answer_is_measured_on_too(tokenizer):
    """The server's own start-up request writes two tokens."""
    one = served(endless(tokenizer), drafting("auto"))
    told = one.submit("a", params(PLAIN, 2))
    one.run()
    assert lookups(one).width_costs is not None
    assert told.tokens == [4, 5]


def test_a_row_whose_context_has_no_room_is_passed_over(tokenizer):
    one = served(endless(tokenizer), drafting("auto"))
    told = one.submit("a", params(PLAIN, None, context_tokens=8))
    one.run()
    assert lookups(one).width_costs is None
    one.submit("b", params(PLAIN, 20))
    one.run()
    assert lookups(one).width_costs is not None
    assert len(told.tokens) == 7


def test_under_a_shared_budget_only_a_row_that_has_reserved_enough_is_measured_on(tokenizer):
    one = served(endless(tokenizer), drafting("auto"), settings={"kv_budget_tokens": 1024})
    one.submit("a", params(PLAIN, 7))
    one.run()
    assert lookups(one).width_costs is None
    one.submit("b", params(PLAIN, 8))
    one.run()
    assert lookups(one).width_costs is not None


def test_a_measurement_that_fails_is_reported_and_not_tried_again(tokenizer, caplog):
    engine = alphabet(tokenizer)
    one = served(engine, drafting("auto", builds_kernels=True))
    beside = one.submit("b", params((200,), 30), is_speculative=False)
    one.tick()
    forward = engine.drafting.forward_width

    def fails(seq, width, *, wait):
        forward(seq, width, wait=wait)
        if width == 4:
            raise EvalFailed("the device fell over")

    engine.drafting.forward_width = fails
    with caplog.at_level(logging.WARNING):
        told = one.submit("a", params(COPY, 30))
        one.run()
    assert "could not be measured" in caplog.text
    assert told.tokens == [(3 + i) % 24 for i in range(30)]
    assert told.done.timings.draft_rounds == 0
    assert beside.tokens == [i % 24 for i in range(30)]
    later = one.submit("c", params(COPY, 60))
    one.run()
    assert lookups(one).width_costs is None
    assert later.done.timings.draft_rounds > 0, "graded, until costs are known"


def test_a_neighbour_is_not_changed_by_a_measurement(tokenizer):
    one = served(alphabet(tokenizer), drafting("auto"))
    beside = one.submit("b", params((200,), 40), is_speculative=False)
    for _ in range(5):
        one.tick()
    told = one.submit("a", params(COPY, 40))
    one.run()
    assert beside.tokens == [i % 24 for i in range(40)]
    assert told.tokens == [(3 + i) % 24 for i in range(40)]


def test_auto_drafts_where_it_pays_and_only_there(tokenizer):
    told = {}
    for costs in (CHEAP, DEAR):
        one = served(alphabet(tokenizer), drafting("auto", width_costs=costs))
        told[costs] = one.submit("a", params(COPY, 60))
        one.run()
    assert told[CHEAP].done.timings.draft_n_accepted > 30
    assert told[DEAR].done.timings.draft_rounds == 0
    assert told[CHEAP].tokens == told[DEAR].tokens


def test_a_max_batch_below_1_is_refused():
    with pytest.raises(InvalidParams, match="prompt_lookup_max_batch"):
        LookupSettings(max_batch=0)
