"""Prompt lookup takes fewer forwards and leaves rows in order: rounds, ends, faults, pipelining."""

import pytest

from engine import guard
from engine.errors import EvalFailed, NonFiniteLogits, RewindFailed
from engine.finish import FinishCause
from engine.lookup.auto_governor import governor_for
from engine.lookup.reference import ReferenceText
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, SequenceParams, SpeculationParams
from engine.text.row_text import RowText
from tests.engine.inside import row_of, storage_of
from tests.engine.lookup_rigs import (
    SPECULATION,
    OneRow,
    Scripted,
    decode,
    lookup,
)
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    cycle_engine,
    prefill,
)

PERIOD = 16
CYCLE = (*range(PERIOD), 0)
"""Each token has been followed by the next one, once."""
CHEAP = WidthCosts((1.1, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5))


def next_in_cycle(seen: list[int], room: int) -> list[int]:
    return [(seen[-1] + i) % PERIOD for i in range(1, room + 1)]


# -- the cycle, whose text is known


@pytest.mark.parametrize("policy", LookupPolicy)
def test_a_cycle_is_accepted_whole_once_it_was_seen(policy):
    engine = cycle_engine()
    params = SequenceParams((3,), max_tokens=200)
    governor = governor_for(
        SpeculationParams(policy=policy), unmeasured=LookupPolicy.GRADED, costs=CHEAP
    )
    drafter = lookup(governor)
    assert decode(engine, params, drafter).tokens == decode(engine, params).tokens
    stats = drafter.stats
    assert stats.accepted == stats.proposed > 100
    # No draft during the first period, then some eight tokens a forward.
    assert 1 + PERIOD + 22 <= stats.rounds <= 1 + PERIOD + 34


def test_drafts_come_from_a_reference_that_the_model_never_sees():
    engine = cycle_engine()
    watched = Watched(engine)
    params = SequenceParams((3, 4), max_tokens=17)
    reference = ReferenceText.from_tokens("the cycle", CYCLE, SPECULATION)
    drafter = lookup(references=(reference,))
    assert decode(engine, params, drafter).tokens == [(5 + i) % PERIOD for i in range(17)]
    assert drafter.stats.accepted == drafter.stats.proposed > 0
    assert [fed.tolist() for fed in watched.fed[:2]] == [[[3]], [[4]]]
    assert [fed.shape[1] for fed in watched.fed[2:]] == [8, 4, 4], "16 tokens in 3 forwards"


@pytest.mark.parametrize("j", range(8))
def test_a_drafter_right_up_to_a_position_gains_it(j):
    def propose(seen: list[int], room: int) -> list[int]:
        right = next_in_cycle(seen, room)
        return [t if i < j else (t + 1) % PERIOD for i, t in enumerate(right)]

    engine = cycle_engine()
    drafter = Scripted(propose)
    params = SequenceParams(CYCLE, max_tokens=33)
    assert decode(engine, params, drafter).tokens == decode(engine, params).tokens
    assert set(drafter.accepted[:-2]) == {j}


def test_a_draft_longer_than_the_room_is_cut_to_it():
    engine = cycle_engine(context=48)
    drafter = Scripted(lambda seen, room: next_in_cycle(seen, 64))
    params = SequenceParams(CYCLE)
    written = decode(engine, params, drafter)
    assert written.tokens == decode(engine, params).tokens
    assert written.finish is FinishCause.CONTEXT_EXHAUSTED


@pytest.mark.parametrize("token", [-1, PERIOD])
def test_a_made_up_token_costs_the_drafter_not_the_row(token):
    engine = cycle_engine()
    params = SequenceParams(CYCLE, max_tokens=20)
    written = decode(engine, params, Scripted(lambda seen, room: [seen[-1], token]))
    assert written.tokens == decode(engine, params).tokens
    assert "token id" in str(written.dropped)


def test_a_drafter_ahead_of_its_row_is_dropped_and_seen():
    engine = cycle_engine()
    seq = engine.open(SequenceParams(CYCLE, max_tokens=20))
    prefill(engine, seq)
    drafter = lookup()
    drafter.start(CYCLE, engine.last_token(seq))
    drafter.observe((5,))
    rounds = OneRow(engine, seq, drafter=drafter, max_draft=7)
    assert [o.token for o in rounds.run()] == [(2 + i) % PERIOD for i in range(19)]
    assert "knows 2 tokens of an answer of 1" in str(rounds.dropped)


# -- the end of an answer inside an accepted block


@pytest.mark.parametrize(
    ("params", "written", "finish", "held"),
    [
        # After the first token (1): current 1 is not in KV, which holds 17.
        pytest.param({"max_tokens": 20}, 20, FinishCause.LENGTH, 17 + 19, id="budget between"),
        pytest.param({"max_tokens": 9}, 9, FinishCause.LENGTH, 17 + 8, id="budget at a full round"),
        pytest.param({"context_tokens": 27}, 10, FinishCause.CONTEXT_EXHAUSTED, 26, id="context"),
        # Tokens 1, 2, 3, 4 are written; 5 is drawn by the forward that appended 4.
        pytest.param({"stop_ids": frozenset({5})}, 4, FinishCause.EOS, 17 + 4, id="end token"),
        pytest.param({"stop_ids": frozenset({2})}, 1, FinishCause.EOS, 17 + 1, id="at once"),
        pytest.param({"stop_ids": frozenset({9})}, 8, FinishCause.EOS, 17 + 8, id="own token"),
    ],
)  # fmt: skip
def test_an_answer_ends_inside_a_block_as_it_ends_in_plain_steps(params, written, finish, held):
    engine = cycle_engine()
    asked = SequenceParams(CYCLE, **params)
    ours = decode(engine, asked, Scripted(next_in_cycle))
    assert (len(ours.tokens), ours.finish, ours.held_at_end) == (written, finish, held)
    plain = decode(engine, asked)
    assert (ours.tokens, ours.finish, ours.held_at_end) == (
        plain.tokens,
        plain.finish,
        plain.held_at_end,
    )


def test_a_stop_string_inside_a_block_ends_there(tokenizer):
    engine = cycle_engine(vocab=259, tokenizer=tokenizer)
    params = SequenceParams(tuple(b"a"), max_tokens=30)
    alphabet = list(range(98, 128))

    def run(drafter):
        text = RowText(tokenizer.decoder(), ["ef"])
        return decode(engine, params, drafter, text=text), text

    drafter = Scripted(lambda seen, room: alphabet[len(seen) : len(seen) + room])
    ours, text = run(drafter)
    plain, plain_text = run(None)
    assert (ours.finish, text.text, text.stop_match) == (FinishCause.STOP_SEQUENCE, "bcd", "ef")
    assert (text.text, ours.tokens, ours.held_at_end) == (
        plain_text.text,
        plain.tokens,
        plain.held_at_end,
    )
    assert drafter.accepted == [3]


# -- failures


@pytest.mark.parametrize("position", range(4))
def test_a_failure_at_a_position_undoes_the_round_and_ends_that_row_only(position):
    engine = cycle_engine()
    seq, other = (engine.open(SequenceParams(CYCLE)) for _ in range(2))
    for one in (seq, other):
        prefill(engine, one)
    watched = Watched(engine)
    watched.spoils = lambda call, logits: (
        logits.at[:, position if call == 1 else 0].multiply(float("nan")) if call < 3 else logits
    )
    outcome = engine.verify(seq, (2, 3, 4))
    assert isinstance(outcome.error, NonFiniteLogits)
    assert [step.token for step in outcome.steps] == [*[2, 3, 4][:position], None]
    assert engine.drafting.held_tokens(seq) == len(CYCLE)
    for _ in range(4):
        engine.step([other])
        assert_length_law(engine, [other])
    assert engine.last_token(other) == 5


def test_a_forward_that_throws_undoes_the_round_and_ends_that_row_only():
    engine = cycle_engine()
    seq, other = (engine.open(SequenceParams(CYCLE)) for _ in range(2))
    for one in (seq, other):
        prefill(engine, one)
    Watched(engine).fails_in = lambda call: call == 1
    outcome = engine.verify(seq, (2, 3, 4))
    assert isinstance(outcome.error, EvalFailed)
    assert engine.drafting.held_tokens(seq) == len(CYCLE)
    assert engine.health.failures == 1
    assert [step.token for step in engine.verify(other, (2, 3)).steps] == [2, 3, 4]


def test_a_rewind_that_fails_beats_the_end_of_the_answer(monkeypatch):
    engine = cycle_engine()
    params = SequenceParams(CYCLE, max_tokens=4)

    def stuck(slot: int, tokens: int) -> None:
        if tokens:
            raise RewindFailed("stuck")

    monkeypatch.setattr(storage_of(engine), "rewind", stuck)
    # Token 4 ends the answer, and the draft behind it must be cut off.
    seq = engine.open(params)
    prefill(engine, seq)
    outcome = engine.verify(seq, (2, 3, 4, 5, 6))
    assert isinstance(outcome.error, RewindFailed)
    assert [step.finish for step in outcome.steps] == [None] * 4
    assert [step.token for step in outcome.steps] == [2, 3, 4, None]
    assert row_of(engine, seq).failed


def test_closing_at_every_point_leaves_an_engine_in_order():
    # mlx-lm#1528: a generator closed inside a round kept stale counts.
    engine = cycle_engine()
    params = SequenceParams(CYCLE, max_tokens=40)
    for stop_after in range(40):
        seq = engine.open(params)
        prefill(engine, seq)
        drafter = lookup()
        drafter.start(CYCLE, engine.last_token(seq))
        rounds = OneRow(engine, seq, drafter=drafter, max_draft=7).run()
        for _, _outcome in zip(range(stop_after), rounds, strict=False):
            assert_length_law(engine, [seq])
        rounds.close()
        engine.close(seq)
        assert not storage_of(engine).arrays()


# -- pipelining


def reads_before_the_next_forward(engine, monkeypatch, *, pipelined: bool) -> int:
    """Decode steps of a text that never repeats which were read with nothing dispatched."""
    watched = Watched(engine)
    params = SequenceParams((0,), max_tokens=60)
    seq = engine.open(params)
    prefill(engine, seq)
    read = guard.read
    monkeypatch.setattr(guard, "read", lambda array: (watched.log.append("read"), read(array))[1])
    watched.log.clear()
    drafter = lookup()
    drafter.start(params.prompt_ids, engine.last_token(seq))
    rounds = OneRow(engine, seq, drafter=drafter, max_draft=7, pipelined=pipelined)
    assert len(list(rounds.run())) == 59
    engine.close(seq)
    log = watched.log
    assert log.count("forward") == log.count("read") == 59
    return sum(
        log[: at + 1].count("forward") == log[: at + 1].count("read")
        for at, what in enumerate(log)
        if what == "read"
    )


def test_a_text_that_never_matches_keeps_its_lookahead_after_two_rounds(monkeypatch):
    alone = reads_before_the_next_forward(cycle_engine(vocab=259), monkeypatch, pipelined=True)
    assert alone == 2 + 1, "two synchronous asks, and the last step has none to follow"
    monkeypatch.undo()
    sync = reads_before_the_next_forward(cycle_engine(vocab=259), monkeypatch, pipelined=False)
    assert sync == 59
