"""Rows whose draw needs the token before it on the host: masks, DRY, mirostat."""

import mlx.core as mx
import numpy as np
import pytest

from engine import guard
from engine.errors import HookFailed
from engine.finish import FinishCause
from engine.params import SamplingParams, SequenceParams
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    cycle_engine,
    prefill,
    run_alone,
    run_together,
    tiny_engine,
)


class Hooks:
    """A mask by the newest token; it notes which ids it saw."""

    def __init__(self, vocab: int = 16) -> None:
        self.vocab = vocab
        self.seen: list[tuple[int, ...]] = []
        self.ends_after: int | None = None
        self.raises_at: int | None = None
        self.allows: set[int] | None = None

    def mask(self, ids) -> np.ndarray | None:
        self.seen.append(tuple(ids))
        if len(ids) == self.raises_at:
            raise ValueError("the grammar has no such state")
        if self.allows is None:
            # After every token only the one two further on may come.
            banned = np.full(self.vocab, -np.inf, np.float32)
            banned[(ids[-1] + 2) % self.vocab] = 0
            return banned
        return np.where([token in self.allows for token in range(self.vocab)], 0, -np.inf)

    def finish(self, ids) -> FinishCause | None:
        return FinishCause.STRUCTURED_STOP if len(ids) == self.ends_after else None


def decode(engine, seq, steps: int, *, pipelined: bool = True) -> list:
    """Outcomes of a row that decodes, at most ``steps``."""
    outcomes, ticket = [], None
    while len(outcomes) < steps and not (outcomes and outcomes[-1].is_final):
        ticket = ticket or engine.submit([seq])
        later = engine.submit([seq]) if pipelined and engine.wants_step(seq) else None
        outcomes += engine.collect(ticket)
        ticket = later
    return outcomes


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_mask_is_asked_with_every_committed_token_and_obeyed(pipelined: bool):
    engine = cycle_engine()
    hooks = Hooks()
    seq = engine.open(SequenceParams((1, 3), max_tokens=6), hooks=hooks)
    first = prefill(engine, seq)
    tokens = [first.token, *(one.token for one in decode(engine, seq, 9, pipelined=pipelined))]
    assert tokens == [5, 7, 9, 11, 13, 15]
    ids = (1, 3, *tokens)
    assert hooks.seen == [ids[:length] for length in range(2, 8)]


def test_the_forward_of_a_host_row_is_dispatched_before_its_token_is_read(monkeypatch):
    engine = cycle_engine()
    seq = engine.open(SequenceParams((1, 3)), hooks=Hooks())
    prefill(engine, seq)
    watched = Watched(engine)
    read = guard.read

    def noted(array: mx.array) -> list:
        watched.log.append("read")
        return read(array)

    monkeypatch.setattr(guard, "read", noted)
    decode(engine, seq, 4)
    assert watched.log == ["forward", *["forward", "read"] * 4]


SAMPLING = {
    "dry": SamplingParams(
        temperature=1, dry_multiplier=4.0, dry_allowed_length=1, dry_penalty_last_n=-1, seed=3
    ),
    "greedy dry": SamplingParams(dry_multiplier=4.0, dry_allowed_length=1, dry_penalty_last_n=-1),
    "mirostat 1": SamplingParams(temperature=1, mirostat=1, mirostat_tau=0.5, seed=3),
    "mirostat 2": SamplingParams(temperature=1, mirostat=2, mirostat_tau=3.0, seed=3),
    "all penalties": SamplingParams(
        temperature=1,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=0.4,
        repetition_context_size=8,
        seed=3,
    ),
    "dry and penalties": SamplingParams(
        temperature=1, repetition_penalty=1.3, dry_multiplier=2.0, dry_allowed_length=1, seed=3
    ),
}


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("family", ["llama", "hybrid", "cycle"])
def test_a_row_that_needs_the_host_writes_the_same_however_it_is_stepped(
    family, sampling, tokenizer
):
    if family == "cycle":
        engine = cycle_engine(vocab=259, period=5, certainty=0.4, tokenizer=tokenizer)
    else:
        engine = tiny_engine(family, tokenizer=tokenizer)
    params = SequenceParams((5, 6, 5, 6, 5), sampling, max_tokens=40)
    plain = SequenceParams((9, 8), max_tokens=50)
    stepped = run_alone(engine, params, pipelined=False).tokens
    assert run_alone(engine, params).tokens == stepped
    assert [answer.tokens for answer in run_together(engine, [plain, params])] == [
        run_alone(engine, plain).tokens,
        stepped,
    ]


def test_dry_and_mirostat_change_what_is_written(tokenizer):
    # Else the test above would pass with both of them off.
    engine = cycle_engine(vocab=259, period=5, certainty=0.4, tokenizer=tokenizer)
    answers = {
        tuple(run_alone(engine, SequenceParams((1, 2, 3, 4), one, max_tokens=40)).tokens)
        for one in (*SAMPLING.values(), SamplingParams(), SamplingParams(temperature=1, seed=3))
    }
    assert len(answers) == len(SAMPLING) + 2


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_mask_that_raises_ends_its_row_only(pipelined: bool):
    engine = cycle_engine()
    hooks = Hooks()
    hooks.raises_at = 5
    struck = engine.open(SequenceParams((1, 3)), hooks=hooks)
    healthy = engine.open(SequenceParams((7,)))
    for seq in (struck, healthy):
        prefill(engine, seq)
    live, ticket, seen = [struck, healthy], None, []
    for _ in range(6):
        ticket = ticket or engine.submit(live)
        later = engine.submit(live) if pipelined else None
        for one in engine.collect(ticket):
            seen.append(one)
            if one.is_final:
                live.remove(one.seq)
        ticket = later
        assert_length_law(engine, live)
    errors = [one for one in seen if one.error is not None]
    assert [one.seq for one in errors] == [struck]
    assert isinstance(errors[0].error, HookFailed)
    assert "the grammar has no such state" in str(errors[0].error)
    assert [one.token for one in seen if one.seq == healthy] == [9, 10, 11, 12, 13, 14]
    assert engine.health.failures == 0


def test_a_mask_that_raises_on_the_first_token_ends_the_prefill():
    engine = cycle_engine()
    hooks = Hooks()
    hooks.raises_at = 2
    seq = engine.open(SequenceParams((1, 3)), hooks=hooks)
    assert isinstance(prefill(engine, seq).error, HookFailed)


@pytest.mark.parametrize("at_once", [True, False], ids=["on the first token", "later"])
def test_a_mask_that_allows_nothing_ends_its_row(at_once: bool):
    engine = cycle_engine()
    hooks = Hooks()
    if at_once:
        hooks.allows = set()
    seq = engine.open(SequenceParams((1, 3)), hooks=hooks)
    outcome = prefill(engine, seq)
    if not at_once:
        hooks.allows = set()
        (outcome,) = engine.step([seq])
    assert outcome.token is None
    assert isinstance(outcome.error, HookFailed)


def test_a_grammar_that_is_complete_ends_the_row():
    engine = cycle_engine()
    hooks = Hooks()
    hooks.ends_after = 5
    seq = engine.open(SequenceParams((1, 3), max_tokens=3), hooks=hooks)
    prefill(engine, seq)
    assert decode(engine, seq, 9)[-1].finish is FinishCause.STRUCTURED_STOP


# A row that waits for the host and one that does not, in steps they share only in part.


def staggered(engine, *, first: SequenceParams, second_hooks: Hooks | None):
    """Row A with one step read ahead, row B joining its second: T1 = [A], T2 = [A, B]."""
    a = engine.open(first, hooks=Hooks())
    b = engine.open(SequenceParams((7, 8)), hooks=second_hooks)
    prefill(engine, a)
    prefill(engine, b)
    return a, b, engine.submit([a]), engine.submit([a, b])


def test_a_step_that_waits_for_a_row_that_ends_is_drawn_all_the_same():
    engine = cycle_engine()
    a, b, one, two = staggered(
        engine, first=SequenceParams((1, 3), stop_ids=frozenset({7})), second_hooks=None
    )
    (outcome,) = engine.collect(one)
    assert (outcome.seq, outcome.finish) == (a, FinishCause.EOS)
    three = engine.submit([b])
    tokens = [engine.collect(ticket)[0].token for ticket in (two, three)]
    assert tokens == [10, 11]
    assert_length_law(engine, [b])


def test_a_step_that_waits_for_a_row_that_is_closed_is_drawn_all_the_same():
    engine = cycle_engine()
    a, b, one, two = staggered(engine, first=SequenceParams((1, 3)), second_hooks=None)
    engine.close(a)
    assert engine.collect(one) == []
    three = engine.submit([b])
    assert [engine.collect(ticket)[0].token for ticket in (two, three)] == [10, 11]


def test_a_mask_that_raises_after_the_row_it_waited_for_has_ended_is_reported():
    engine = cycle_engine()
    hooks = Hooks()
    hooks.raises_at = 3
    _, b, one, two = staggered(
        engine, first=SequenceParams((1, 3), stop_ids=frozenset({7})), second_hooks=hooks
    )
    engine.collect(one)
    (outcome,) = engine.collect(two)
    assert outcome.seq == b
    assert isinstance(outcome.error, HookFailed)


def test_rows_are_fed_from_the_steps_they_were_in():
    engine = cycle_engine()
    seqs = []
    for token in (1, 5, 9):
        seqs.append(engine.open(SequenceParams((token,))))
        prefill(engine, seqs[-1])
    a, b, c = seqs
    one, two = engine.submit([a]), engine.submit([b])
    three = engine.submit([a, b, c])
    tokens = {}
    for ticket in (one, two, three):
        for outcome in engine.collect(ticket):
            tokens.setdefault(outcome.seq, []).append(outcome.token)
    assert tokens == {a: [3, 4], b: [7, 8], c: [11]}
    assert_length_law(engine, seqs)
