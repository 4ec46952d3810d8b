"""Drafts in the batch: who is asked, who verifies, when the lookahead stays (I1 to I5, I7)."""

import logging

import pytest

from engine.errors import DrafterOutOfStep
from engine.finish import FinishCause
from engine.lookup.drafter import PromptLookup
from engine.prefill import PrefillPacer
from engine.scheduler.drafters import INDEX_SLICE_TOKENS
from engine.scheduler.preemption import PreemptionPolicy
from tests.engine.scheduler.prompt_lookup_rigs import (
    COPY,
    PLAIN,
    Watch,
    alphabet,
    altered,
    drafter,
    drafting,
    endless,
    params,
    served,
    ticks_until,
)
from tests.engine.scheduler.scheduler_rigs import Served


@pytest.fixture
def engine(tokenizer):
    return alphabet(tokenizer)


def lookahead_steps(one: Served) -> int:
    return one.scheduler.stats().counters.lookahead_steps


# -- the tick


def test_plain_ticks_submit_the_next_step_before_they_read_one(tokenizer):
    engine = endless(tokenizer)
    watch, one = Watch(engine), served(engine)
    one.submit("a", params(PLAIN, 60))
    one.submit("b", params((200,), 60))
    one.tick()
    while not one.scheduler.idle:
        called = watch.of_tick(one)
        assert called in (["submit", "collect"], ["collect"], [])
    # The last tick of both has nothing left to submit.
    assert lookahead_steps(one) == one.scheduler.stats().counters.decode_steps - 1


@pytest.mark.parametrize("policy", ["fixed", "graded", "gated"])
def test_a_plain_answer_of_n_tokens_keeps_n_minus_5_lookahead_steps(tokenizer, policy):
    one = served(endless(tokenizer), drafting(policy))
    told = one.submit("a", params(PLAIN, 128))
    one.run()
    assert lookahead_steps(one) >= 123
    assert told.done.timings.draft_rounds == 0


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("policy", ["fixed", "graded", "gated"])
def test_plain_answers_together_keep_their_lookahead(tokenizer, policy, rows):
    """I6: some end and one is cancelled meanwhile, and that empties no pipeline either."""
    one = served(endless(tokenizer), drafting(policy))
    told = one.submit("0", params(PLAIN, 128))
    for i in range(1, rows):
        one.submit(str(i), params((50 * i,), 128 if i == 1 else 30 * i))
    ticks_until(one, lambda: len(told.tokens) > 40)
    one.scheduler.cancel(str(rows - 1))
    one.run()
    assert lookahead_steps(one) >= 123
    assert told.tokens == list(range(4, 132))
    assert one.scheduler.stats().counters.verify_rounds == 0


def test_a_proposal_found_in_flight_is_read_first_and_verified_in_the_next_tick(engine):
    """I3: the switch tick submits nothing, and what it read is what the next ask is about."""
    watch, one = Watch(engine), served(engine)
    told = one.submit("a", params(COPY))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    assert watch.of_tick(one) == ["collect"]
    before = len(told.tokens)
    asked = drafter(one, "a")
    assert asked is not None
    assert asked.stats.rounds == 0, "the ask was retracted"
    assert watch.of_tick(one) == ["verify"]
    assert asked.stats.drafted_rounds == 1
    assert len(told.tokens) == before + 8
    one.run()
    assert told.tokens == [(3 + i) % 24 for i in range(60)]


def test_the_switch_takes_the_neighbours_asks_back_too(engine):
    """I4: nothing that was asked in that tick is followed by a forward."""
    watch, one = Watch(engine), served(engine)
    one.submit("b", params((100,), 24))
    one.submit("a", params(COPY))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    beside = drafter(one, "b")
    assert beside is not None
    rounds = beside.stats.rounds
    assert watch.of_tick(one) == ["collect"]
    assert beside.stats.rounds == rounds > 0
    assert watch.of_tick(one) == ["submit", "collect", "verify"]
    assert beside.stats.rounds == rounds + 1


def test_rows_without_a_proposal_step_together_before_the_others_verify(engine):
    watch, one = Watch(engine), served(engine)
    one.submit("a", params(COPY))
    for i in range(2):
        one.submit(f"p{i}", params((100 + 50 * i,), 20))
    ticks_until(one, lambda: "verify" in watch.log)
    assert watch.log[-3:] == ["submit", "collect", "verify"]


def test_each_proposing_row_verifies_once_a_tick(engine):
    watch, one = Watch(engine), served(engine)
    for i in range(3):
        one.submit(str(i), params(COPY))
    called: list[list[str]] = []
    while not one.scheduler.idle:
        called.append(watch.of_tick(one))
    assert ["verify"] * 3 in called
    assert max(one.count("verify") for one in called) == 3


def test_a_plain_neighbour_gets_one_token_a_tick_while_another_row_drafts(tokenizer):
    one = served(alphabet(tokenizer, vocab=259))
    drafted = one.submit("a", params(COPY, 100))
    plain = one.submit("b", params((100,), 24))
    ticks_until(one, lambda: plain.tokens)
    begun, before = one.ticks, len(plain.tokens)
    while not plain.is_over:
        one.tick()
        assert len(plain.tokens) - before == one.ticks - begun
    assert drafted.done if drafted.is_over else len(drafted.tokens) > 24


def test_after_the_drafts_the_pipeline_fills_again_once_three_asks_came_back_empty(engine):
    """I3: at rest the next step is kept only when no drafter expects a match."""
    watch, one = Watch(engine), served(engine)
    one.submit("a", params(COPY, 200))
    ticks_until(one, lambda: "verify" in watch.log)
    altered(drafter(one, "a"), _look_up=lambda self, limit: None)
    assert watch.of_tick(one) == ["submit", "collect"]
    assert watch.of_tick(one) == ["submit", "collect"]
    assert watch.of_tick(one) == ["submit", "submit", "collect"]
    assert watch.of_tick(one) == ["submit", "collect"]
    assert one.scheduler._pipeline.in_flight


def test_without_a_pipeline_drafts_are_verified_all_the_same(engine):
    one = served(engine, settings={"is_pipelined": False})
    told = one.submit("a", params(COPY))
    one.run()
    assert told.tokens == [(3 + i) % 24 for i in range(60)]
    assert told.done.timings.draft_n_accepted > 30
    assert lookahead_steps(one) == 0


# -- I4: contexts and asks


def test_every_ask_is_about_the_token_its_forward_is_fed(engine):
    one = served(engine)
    one.submit("a", params(COPY, 150))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    asked = drafter(one, "a")
    assert asked is not None
    told = one.told["a"]
    one.run()
    # Rounds are the asks that were not retracted: each wrote one token and what was accepted. The
    # first token was there before, and the last ones have no room to draft.
    written = 1 + asked.stats.rounds + asked.stats.accepted
    assert len(told.tokens) - 2 <= written <= len(told.tokens)


def test_a_row_that_was_held_is_asked_once_about_each_token(engine):
    one = served(engine)
    told = one.submit("a", params(PLAIN, 20))
    other = one.submit("b", params((50,), 24))
    ticks_until(one, lambda: len(told.tokens) == 4)
    asked = drafter(one, "a")
    assert asked is not None
    one.scheduler.pause("a")
    for _ in range(3):
        one.tick()
    held, rounds = len(told.tokens), asked.stats.rounds
    one.scheduler.resume("a")
    one.tick()
    one.tick()
    assert asked.stats.rounds - rounds == 1
    assert len(told.tokens) == held + 1
    one.run()
    assert told.tokens == [(4 + i) % 24 for i in range(20)]
    assert len(other.tokens) == 24


def test_a_drafter_never_sees_another_request_s_tokens(tokenizer):
    """Two prompts share their n-grams and continue with different secrets."""
    engine = alphabet(tokenizer)
    watch, one = Watch(engine), served(engine)
    secrets = [(100, 101, 102, 103), (200, 201, 202, 203)]
    for i, secret in enumerate(secrets):
        one.submit(str(i), params((*range(8), *secret, *range(5)), 30))
    seqs = {}
    while not one.scheduler.idle:
        one.tick()
        seqs |= {job.seq: id_ for id_, job in one.scheduler._rows.items()}
    assert len(watch.drafts) == 2
    for seq, drafts in watch.drafts.items():
        own, other = secrets[int(seqs[seq])], secrets[1 - int(seqs[seq])]
        drafted = {token for draft in drafts for token in draft}
        assert not drafted & set(other)
        assert drafted & set(own), "the row's own secret is drafted, and refused by the model"


def test_a_drafter_ahead_of_its_row_is_dropped_and_the_row_goes_on(engine, caplog):
    one = served(engine)
    told = one.submit("a", params(COPY, 60))
    beside = one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: len(told.tokens) > 12)
    ahead = drafter(one, "a")
    assert ahead is not None
    rounds = one.scheduler._rows["a"].drafts.verified.drafted_rounds
    ahead.observe([7] * 50)
    with caplog.at_level(logging.WARNING):
        one.tick()
    assert drafter(one, "a") is None
    assert drafter(one, "b") is not None
    assert "request a continues without prompt lookup" in caplog.text
    one.run()
    assert told.tokens == beside.tokens == [(3 + i) % 24 for i in range(60)]
    assert told.done.timings.draft_rounds == rounds < beside.done.timings.draft_rounds


@pytest.mark.parametrize("method", ["catch_up", "prepare", "propose", "discard", "accept"])
@pytest.mark.parametrize("error", [DrafterOutOfStep("lost"), IndexError("a bug")])
def test_what_a_drafter_raises_drops_the_drafter_only(engine, caplog, method, error):
    """I7"""

    def fails(*_):
        raise error

    one = served(engine)
    told, beside = one.submit("a", params(COPY, 60)), one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    altered(drafter(one, "a"), **{method: fails})
    one.run()
    assert told.tokens == beside.tokens == [(3 + i) % 24 for i in range(60)]
    assert "request a continues without prompt lookup" in caplog.text
    assert told.done.timings.draft_rounds <= 1 < beside.done.timings.draft_rounds


def test_a_made_up_token_drops_the_drafter(engine, caplog):
    one = served(engine)
    told = one.submit("a", params(COPY, 40))
    ticks_until(one, lambda: drafter(one, "a") is not None)
    altered(drafter(one, "a"), propose=lambda *_: (9999,) * 30)
    one.run()
    assert told.tokens == [(3 + i) % 24 for i in range(40)]
    assert "token id 9999" in caplog.text
    assert told.done.timings.draft_rounds == 0


# -- I5: the gate


def test_above_the_max_batch_nobody_is_asked(engine):
    """No round, no miss, no rest, no index; the row is asked again once the batch shrinks."""
    watch, one = Watch(engine), served(engine, drafting("graded", max_batch=2))
    told = [one.submit(str(i), params(COPY, 10 + 60 * (i == 0))) for i in range(3)]
    ticks_until(one, lambda: drafter(one, "2") is not None)
    gated = drafter(one, "0")
    assert gated is not None
    while len(one.scheduler._rows) == 3 and not any(
        job.completion_tokens >= 9 for job in one.scheduler._rows.values()
    ):
        assert watch.of_tick(one) == ["submit", "collect"]
        assert gated.stats.rounds == 0
        assert gated.observed_tokens == 1
        assert not gated._request.index.is_current
    one.run()
    assert "verify" not in watch.log or gated.stats.drafted_rounds > 0
    assert told[0].done.timings.draft_n_accepted > 20
    assert told[1].done.timings.draft_rounds == 0
    assert told[0].tokens[:10] == told[1].tokens == told[2].tokens


def test_held_rows_do_not_close_the_gate(engine):
    one = served(engine, drafting(max_batch=1))
    told, held = one.submit("a", params(COPY, 60)), one.submit("b", params(COPY, 60))
    ticks_until(one, lambda: told.tokens and held.tokens)
    one.scheduler.pause("b")
    ticks_until(one, lambda: told.is_over)
    assert told.done.timings.draft_rounds > 3
    one.scheduler.resume("b")
    one.run()
    assert held.tokens == told.tokens


def test_the_last_token_is_a_plain_step(engine):
    watch, one = Watch(engine), served(engine)
    told = one.submit("a", params(COPY, 12))
    one.run()
    # One by prefill, one by the switch, eight by the round; two are left: a draft of one.
    assert [len(draft) for drafts in watch.drafts.values() for draft in drafts] == [7, 1]
    assert told.done.finish is FinishCause.LENGTH
    assert len(told.tokens) == 12


def test_a_context_bound_caps_the_draft(tokenizer):
    for context in range(len(COPY) + 2, len(COPY) + 24):
        engine = alphabet(tokenizer, context=context)
        watch, one = Watch(engine), served(engine)
        told = one.submit("a", params(COPY, None))
        one.run()
        plain = Served(alphabet(tokenizer, context=context))
        other = plain.submit("a", params(COPY, None))
        plain.run()
        assert told.tokens == other.tokens
        assert told.done.finish is other.done.finish is FinishCause.CONTEXT_EXHAUSTED
        for seq, drafts in watch.drafts.items():
            assert len(watch.ids[seq]) + len(drafts[-1]) < context


def test_a_long_index_is_built_in_slices_over_several_ticks(tokenizer):
    engine = alphabet(tokenizer, context=40_000)
    one = served(engine)
    pacer = PrefillPacer(8192)
    one.scheduler._pacer = one.scheduler._prefiller.pacer = pacer
    sliced: list[int] = []
    asked: list[str] = []

    def prepare(self, limit):
        sliced.append(limit)
        return PromptLookup.prepare(self, limit)

    def propose(self, *of):
        asked.append("propose")
        return PromptLookup.propose(self, *of)

    told = [one.submit(str(i), params(tuple(range(24)) * 1000, 40)) for i in range(2)]
    ticks_until(one, lambda: drafter(one, "0") is not None and drafter(one, "1") is not None)
    for i in "01":
        altered(drafter(one, i), prepare=prepare, propose=propose)
    plain_ticks = 0
    while not asked:
        sliced.clear()
        one.tick()
        assert sum(sliced) <= INDEX_SLICE_TOKENS
        plain_ticks += not asked
    assert plain_ticks == 5, "24,000 tokens, 4,096 a tick for each of two rows"
    one.run()
    assert told[0].tokens == told[1].tokens
    assert all(each.done.timings.draft_n_accepted > 0 for each in told)


def test_a_budget_that_can_run_out_in_mid_answer_closes_the_gate(engine):
    one = served(
        engine,
        settings={"kv_budget_tokens": 4096},
        preemption=PreemptionPolicy.LONGEST_FIRST,
    )
    told = one.submit("a", params(COPY, 60))
    one.run()
    assert told.done.timings.draft_rounds == 0


def test_a_budget_that_is_reserved_does_not_and_is_kept_to(engine):
    one = served(engine, settings={"kv_budget_tokens": 512})
    told = [one.submit(str(i), params(COPY, 220)) for i in range(3)]
    while not one.scheduler.idle:
        one.tick()
        stats = one.scheduler.stats()
        assert stats.kv_rows * stats.kv_positions <= 512
    assert all(each.done.timings.draft_n_accepted > 50 for each in told)
