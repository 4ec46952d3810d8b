"""Replies with drafts and without: the same text, counts only where something was drafted."""

import logging
from dataclasses import fields, replace

import numpy as np
import pytest

from engine.errors import DrafterOutOfStep
from engine.events import Started
from engine.finish import FinishCause
from engine.lookup.drafter import PromptLookup
from engine.lookup.eligibility import Refusal, RowFacts, refusal
from engine.lookup.reference import ReferenceText
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import tiny_engine
from tests.engine.scheduler.prompt_lookup_rigs import (
    COPY,
    PLAIN,
    alphabet,
    drafting,
    endless,
    params,
    served,
)
from tests.engine.scheduler.scheduler_rigs import Served, Told, alone, mixed_requests

LOOPING = tuple(b"the cat sat on the mat, the cat sat on the ")
"""Tiny random models fall into loops after some tokens, which is when they copy."""


def run(one: Served, requests: list[SequenceParams]) -> list[Told]:
    told = [one.submit(str(i), request) for i, request in enumerate(requests)]
    one.run()
    return told


ENGINES = {
    "copies": (alphabet, COPY),
    "copies, shared forwards": (lambda tokenizer: alphabet(tokenizer, together=True), COPY),
    "never copies": (endless, PLAIN),
    "tiny": (lambda tokenizer: tiny_engine(tokenizer=tokenizer), LOOPING),
}


@pytest.mark.parametrize("concurrent", [1, 2, 4])
@pytest.mark.parametrize("name", list(ENGINES))
@pytest.mark.parametrize("policy", ["fixed", "graded", "gated"])
def test_replies_are_the_same_on_and_off_alone_and_together(tokenizer, name, concurrent, policy):
    make, prompt = ENGINES[name]
    requests = [params(prompt[i:], 60) if i < len(prompt) else params((i,), 60) for i in range(4)]
    requests = requests[:concurrent]
    solo = [alone(make(tokenizer), one)[0] for one in requests]
    off = run(Served(make(tokenizer), parallel=4), requests)
    on = run(served(make(tokenizer), drafting(policy)), requests)
    assert [one.text for one in on] == [one.text for one in off] == solo
    assert [one.done.usage for one in on] == [one.done.usage for one in off]
    assert all(one.done.timings.draft_rounds == 0 for one in off)
    if name.startswith("copies"):
        assert all(one.done.timings.draft_n_accepted > 0 for one in on)


def test_sampled_and_penalised_rows_are_drafted_and_write_the_same(tokenizer):
    requests = mixed_requests(12)
    off = run(Served(tiny_engine(tokenizer=tokenizer), parallel=4), requests)
    on = run(served(tiny_engine(tokenizer=tokenizer)), requests)
    assert [one.text for one in on] == [one.text for one in off]
    assert [one.done.finish for one in on] == [one.done.finish for one in off]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", [7, 8])
def test_random_company_that_comes_and_goes_changes_no_reply(tokenizer, together, seed):
    """Admission and ends of neighbours during rounds, cancels among them."""
    random = np.random.default_rng(seed)
    engine = alphabet(tokenizer, together=together)
    one = served(engine, drafting(max_batch=3), parallel=3)
    asked: dict[str, SequenceParams] = {}
    cancelled = set()
    for i in range(24):
        start = int(random.integers(0, 24))
        tail = tuple((start + j) % 24 for j in range(int(random.integers(3, 40))))
        asked[str(i)] = params(tail, int(random.integers(1, 70)))
        one.submit(str(i), asked[str(i)])
        for _ in range(int(random.integers(0, 6))):
            one.tick()
        if random.random() < 0.2:
            cancelled.add(str(i))
            one.scheduler.cancel(str(i))
    one.run()
    drafted = 0
    for id_, request in asked.items():
        told = one.told[id_]
        expected = [(request.prompt_ids[-1] + 1 + j) % 24 for j in range(request.max_tokens)]
        if id_ in cancelled:
            assert told.tokens == expected[: len(told.tokens)]
        else:
            assert told.tokens == expected
            assert told.done.finish is FinishCause.LENGTH
            drafted += told.done.timings.draft_n_accepted
    assert drafted > 100


# -- who is not drafted


class AllowsAll:
    """A hook that decides nothing."""

    def mask(self, ids):
        return None

    def finish(self, ids):
        return None


@pytest.mark.parametrize(
    ("reason", "sampling", "extra"),
    [
        ("structured-output", {}, {"hooks": AllowsAll()}),
        ("sampler-feedback", {"mirostat": 2, "seed": 1}, {}),
        ("opted-out", {}, {"is_speculative": False}),
    ],
)
def test_a_request_that_is_not_eligible_decodes_plainly_and_the_log_says_why(
    tokenizer, caplog, reason, sampling, extra
):
    asked = params(COPY, 40, sampling=SamplingParams(**sampling))
    off = Served(alphabet(tokenizer), parallel=4)
    plain = off.submit("a", asked, **extra)
    off.run()
    with caplog.at_level(logging.DEBUG, "engine.scheduler"):
        one = served(alphabet(tokenizer))
        told = one.submit("a", asked, **extra)
        eligible = one.submit("b", params(COPY, 40))
        one.run()
    assert told.text == plain.text
    assert told.done.timings.draft_rounds == 0
    assert told.done.timings.draft_kind is None
    assert eligible.done.timings.draft_rounds > 0
    (line,) = [one for one in caplog.records if "without prompt lookup" in one.message]
    assert line.levelno == logging.DEBUG
    assert line.message == f"request a decodes without prompt lookup: {reason}"


@pytest.mark.parametrize(
    "sampling",
    [
        {"logprobs": 2},
        {"temperature": 0.5, "dynatemp_range": 0.4, "seed": 1},
        {"temperature": 0.5, "top_p": 0.9, "min_keep": 3, "seed": 1},
    ],
    ids=str,
)
def test_every_sampler_without_feedback_drafts_and_writes_the_same(tokenizer, sampling):
    asked = params(COPY, 40, sampling=SamplingParams(**sampling))
    off = Served(alphabet(tokenizer), parallel=4)
    plain = off.submit("a", asked)
    off.run()
    one = served(alphabet(tokenizer))
    told = one.submit("a", asked)
    one.run()
    assert told.tokens == plain.tokens
    assert told.done.timings.draft_n_accepted > 10
    assert [p.chosen.token for p in told.logprobs] == [p.chosen.token for p in plain.logprobs]
    assert [p.chosen.logprob for p in told.logprobs] == pytest.approx(
        [p.chosen.logprob for p in plain.logprobs], abs=1e-4
    )


def test_a_request_may_bring_its_own_settings_and_reference_texts(tokenizer):
    """A server that drafts nothing of its own accord does so for this one, from that text."""
    speculation = SpeculationParams(policy=LookupPolicy.FIXED, max_draft=3)
    text = ReferenceText.from_tokens("the alphabet", range(24), speculation)
    one = Served(alphabet(tokenizer), settings=SchedulerSettings(Limits()))
    told = one.submit("a", params((5,), 16, speculation=speculation), references=(text,))
    other = one.submit("b", params((5,), 16))
    one.run()
    assert told.tokens == other.tokens
    assert told.done.timings.draft_n_accepted > 5
    assert told.done.lookup is not None
    assert told.done.lookup.accepted == told.done.timings.draft_n_accepted
    assert (other.done.timings.draft_rounds, other.done.lookup) == (0, None)


def test_the_start_says_why_a_request_does_not_draft_and_the_end_why_no_more(
    tokenizer, monkeypatch
):
    one = served(alphabet(tokenizer))
    refused = one.submit("a", params(COPY, 8, sampling=SamplingParams(mirostat=2)))
    one.run()
    started = refused.events[0]
    assert isinstance(started, Started)
    assert started.lookup_refused is Refusal.SAMPLER_FEEDBACK
    monkeypatch.setattr(PromptLookup, "accept", lambda *_: 1 / 0)
    dropped = one.submit("b", params(COPY, 40))
    one.run()
    assert dropped.done.lookup_dropped == "division by zero"
    assert dropped.done.lookup is not None
    assert dropped.done.lookup.drafted_rounds == 1


def test_with_a_budget_that_can_run_out_nobody_drafts_and_the_start_says_so(tokenizer):
    one = served(
        alphabet(tokenizer),
        settings={"kv_budget_tokens": 4096},
        preemption=PreemptionPolicy.LONGEST_FIRST,
    )
    told = one.submit("a", params(COPY, 8))
    one.run()
    started = told.events[0]
    assert isinstance(started, Started)
    assert started.lookup_refused is Refusal.KV_CAN_RUN_OUT


@pytest.mark.parametrize("fact", fields(RowFacts), ids=lambda fact: fact.name)
def test_each_fact_that_refuses_leaves_the_text_and_no_counts(tokenizer, caplog, fact):
    off = Served(alphabet(tokenizer), parallel=4)
    plain = off.submit("a", params(COPY, 40))
    off.run()
    engine = alphabet(tokenizer)
    facts = engine.drafting.facts

    def refused(seq, max_draft):
        return replace(facts(seq, max_draft), **{fact.name: not fact.default})

    engine.drafting.facts = refused
    with caplog.at_level(logging.DEBUG, "engine.scheduler"):
        one = served(engine)
        told = one.submit("a", params(COPY, 40))
        one.run()
    assert told.text == plain.text
    assert told.done.timings.draft_kind is None
    assert one.scheduler.stats().counters.verify_rounds == 0
    reason = refusal(RowFacts(**{fact.name: not fact.default}))
    assert f"request a decodes without prompt lookup: {reason.value}" in caplog.text


def test_a_drafter_that_cannot_start_leaves_its_row_plain(tokenizer, caplog, monkeypatch):
    def fails(*_):
        raise DrafterOutOfStep("no index")

    monkeypatch.setattr(PromptLookup, "start", fails)
    one = served(alphabet(tokenizer))
    told = one.submit("a", params(COPY, 40))
    one.run()
    assert told.tokens == [(3 + i) % 24 for i in range(40)]
    assert told.done.timings.draft_kind is None
    assert "request a continues without prompt lookup: " in caplog.text


def test_a_model_whose_kv_cannot_be_cut_decodes_plainly(tokenizer, caplog):
    """mlx-lm#1446: such rows cannot drop rejected tokens."""
    off = Served(tiny_engine("hybrid", tokenizer=tokenizer), parallel=4)
    plain = off.submit("a", params(LOOPING, 30))
    off.run()
    with caplog.at_level(logging.DEBUG, "engine.scheduler"):
        one = served(tiny_engine("hybrid", tokenizer=tokenizer))
        told = one.submit("a", params(LOOPING, 30))
        one.run()
    assert told.text == plain.text
    assert told.done.timings.draft_rounds == 0
    assert "not-trimmable" in caplog.text


def test_without_the_setting_nobody_drafts(tokenizer):
    one = Served(alphabet(tokenizer), parallel=4)
    told = one.submit("a", params(COPY, 40))
    one.run()
    assert told.done.timings.draft_rounds == 0
    assert one.scheduler.stats().counters.verify_rounds == 0


# -- with the prompt cache


@pytest.mark.parametrize("stop", [(), ("\x10",)])
def test_what_a_round_did_not_commit_is_not_remembered(tokenizer, stop):
    """A second turn on the KV of a drafted one equals the turn read anew."""
    settings = {"prompt_cache": CacheLimits(min_tokens=4)}
    engine = tiny_engine(tokenizer=tokenizer)
    one = served(engine, settings=settings)
    first = one.submit("a", params(LOOPING, 50), stops=stop)
    one.run()
    for _ in range(50):
        one.tick()
    turn = params((*LOOPING, *first.tokens, *b" and then the cat sat"), 30)
    warm = one.submit("b", turn)
    one.run()
    cold = Served(tiny_engine(tokenizer=tokenizer), parallel=4)
    plain = cold.submit("b", turn)
    cold.run()
    assert warm.done.usage.cached_tokens > len(LOOPING)
    assert warm.text == plain.text


@pytest.mark.parametrize("ticks", range(3, 12))
def test_a_cancelled_row_is_remembered_as_far_as_its_rounds_were_committed(tokenizer, ticks):
    settings = {"prompt_cache": CacheLimits(min_tokens=4)}
    one = served(tiny_engine(tokenizer=tokenizer), settings=settings)
    first = one.submit("a", params(LOOPING, 90))
    while not first.tokens:
        one.tick()
    for _ in range(ticks):
        one.tick()
    one.scheduler.cancel("a")
    one.run()
    for _ in range(50):
        one.tick()
    turn = params((*LOOPING, *first.tokens, *b" and then"), 30)
    warm = one.submit("b", turn)
    one.run()
    cold = Served(tiny_engine(tokenizer=tokenizer), parallel=4)
    plain = cold.submit("b", turn)
    cold.run()
    told = len(LOOPING) + len(first.tokens)
    assert told - 1 <= warm.done.usage.cached_tokens <= told
    assert warm.text == plain.text


def test_settings_are_off_by_default():
    assert SchedulerSettings(Limits()).lookup is None
