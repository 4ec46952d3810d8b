"""Order of calls, the length law and rows that come and go, on models whose answers are known."""

import mlx.core as mx
import pytest

from engine import guard
from engine.errors import ContextOverflow, UnknownSequence
from engine.finish import FinishCause
from engine.params import LoopRule, SequenceParams
from engine.prefill import PrefillChunk
from tests.engine.inside import row_of, storage_of
from tests.engine.rigs import (
    Watched,
    assert_length_law,
    begun,
    cycle_engine,
    prefill,
    run_alone,
    run_together,
    tiny_engine,
)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch):
    """Notes forwards and reads of an engine in the order they happen."""

    def start(engine) -> Watched:
        watched = Watched(engine)
        read = guard.read

        def noted(array: mx.array) -> list:
            watched.log.append("read")
            return read(array)

        monkeypatch.setattr(guard, "read", noted)
        return watched

    return start


# -- E1, E5: the order of calls


def test_the_next_step_is_dispatched_before_the_token_before_it_is_read(watch):
    engine = cycle_engine()
    (seq,) = begun(engine, (3, 4))
    watched = watch(engine)
    ticket = engine.submit([seq])
    for _ in range(5):
        later = engine.submit([seq])
        engine.collect(ticket)
        ticket = later
    assert watched.log == ["forward", *["forward", "read"] * 5]


def test_submitting_reads_nothing_however_many_rows(watch):
    engine = cycle_engine()
    seqs = begun(engine, (3, 4), (5,), (1, 2, 3))
    watched = watch(engine)
    tickets = [engine.submit(seqs), engine.submit(seqs)]
    assert watched.log == ["forward", "forward"]
    for ticket in tickets:
        engine.collect(ticket)
    assert watched.log == ["forward", "forward", "read", "read"]


@pytest.mark.parametrize("pipelined", [True, False])
def test_no_forward_follows_the_token_that_spends_the_budget(pipelined: bool):
    engine = cycle_engine()
    watched = Watched(engine)
    answer = run_alone(engine, SequenceParams((3, 4, 5), max_tokens=6), pipelined=pipelined)
    assert answer.tokens == [6, 7, 8, 9, 10, 11]
    assert answer.last.finish is FinishCause.LENGTH
    # The prompt but its last token, that token, and one forward for each further token.
    assert watched.calls == 1 + 1 + 5


def test_no_forward_follows_the_token_that_fills_the_context():
    engine = cycle_engine(context=10)
    watched = Watched(engine)
    answer = run_alone(engine, SequenceParams((3, 4, 5)))
    assert answer.last.finish is FinishCause.CONTEXT_EXHAUSTED
    assert len(answer.tokens) == 10 - 3
    assert watched.calls == 1 + len(answer.tokens)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_budget_of_at_most_one_token_wants_no_step(max_tokens: int):
    engine = cycle_engine()
    seq = engine.open(SequenceParams((3, 4), max_tokens=max_tokens))
    assert not engine.wants_step(seq)
    first = prefill(engine, seq)
    assert first.finish is FinishCause.LENGTH
    assert not engine.wants_step(seq)


# -- E3: lengths, and what a stop cuts off


def cuts(engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every rewind of the storage from now on."""
    noted = []
    rewind = storage_of(engine).rewind

    def watched(slot: int, tokens: int) -> None:
        noted.append(tokens)
        rewind(slot, tokens)

    monkeypatch.setattr(storage_of(engine), "rewind", watched)
    return noted


STOPS = {
    FinishCause.EOS: {"stop_ids": frozenset({8})},
    FinishCause.CONTEXT_EXHAUSTED: {"context_tokens": 8},
    FinishCause.REPETITION_LOOP: {"loop": LoopRule(max_pattern=4, min_count=2)},
    FinishCause.LENGTH: {"max_tokens": 5},
}


@pytest.mark.parametrize(
    ("cause", "ahead"),
    [
        pytest.param(FinishCause.EOS, 1, id="an end token"),
        pytest.param(FinishCause.REPETITION_LOOP, 1, id="a loop"),
        pytest.param(FinishCause.CONTEXT_EXHAUSTED, 0, id="the context, known in advance"),
        pytest.param(FinishCause.LENGTH, 0, id="the budget, known in advance"),
    ],
)
def test_a_stop_cuts_off_exactly_the_append_in_flight(cause, ahead, monkeypatch):
    engine = cycle_engine(period=3 if cause is FinishCause.REPETITION_LOOP else None)
    params = SequenceParams((1, 2, 3), **STOPS[cause])
    seq = engine.open(params)
    prefill(engine, seq)
    noted = cuts(engine, monkeypatch)
    ticket, outcome = None, None
    while outcome is None or not outcome.is_final:
        ticket = ticket or engine.submit([seq])
        later = engine.submit([seq]) if engine.wants_step(seq) else None
        (outcome,) = engine.collect(ticket)
        ticket = later
    assert outcome.finish is cause
    assert noted == [ahead]
    row = row_of(engine, seq)
    # An end token is not appended to the answer, but the forward before it was its last token's.
    held = row.prompt_tokens + row.written - (cause is not FinishCause.EOS)
    assert storage_of(engine).length(row.slot) == held


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_length_law_holds_after_every_call(family: str, rows: int):
    engine = tiny_engine(family)
    prompts = [tuple(range(5, 5 + length)) for length in (4, 17, 30)[:rows]]
    seqs = begun(engine, *prompts)
    assert_length_law(engine, seqs)
    ticket = engine.submit(seqs)
    assert_length_law(engine, seqs)
    for _ in range(12):
        later = engine.submit(seqs)
        assert_length_law(engine, seqs)
        engine.collect(ticket)
        assert_length_law(engine, seqs)
        ticket = later
    engine.collect(ticket)
    assert_length_law(engine, seqs)


def test_the_length_law_holds_for_the_others_when_one_row_stops():
    engine = cycle_engine()
    stops, stays = begun(engine, (1, 2), (1, 9), stop_ids=frozenset({6}))
    ticket = engine.submit([stops, stays])
    over = None
    while over is None:
        later = engine.submit([stops, stays])
        over = next((one for one in engine.collect(ticket) if one.is_final), None)
        ticket = later
    assert over.seq == stops
    row = row_of(engine, stops)
    assert storage_of(engine).length(row.slot) == row.prompt_tokens + row.written
    assert_length_law(engine, [stays])
    (outcome,) = engine.collect(ticket)
    assert outcome.seq == stays
    assert_length_law(engine, [stays])


# -- step, submit and collect


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_a_step_is_a_submit_and_its_collect(family: str):
    requests = [SequenceParams((5, 6, 7), max_tokens=20), SequenceParams((9,), max_tokens=13)]
    answers = []
    for pipelined in (True, False):
        answers.append(run_together(tiny_engine(family), requests, pipelined=pipelined))
    engine = tiny_engine(family)
    seqs = begun(engine, (5, 6, 7), (9,), max_tokens=20)
    for _ in range(12):
        engine.step(seqs)
    stepped = [list(engine.ids(seq)) for seq in seqs]
    assert [answer.tokens for answer in answers[0]] == [answer.tokens for answer in answers[1]]
    assert stepped == [[5, 6, 7, *answers[0][0].tokens[:13]], [9, *answers[0][1].tokens]]


def test_a_ticket_of_closed_rows_can_still_be_collected():
    engine = cycle_engine()
    gone, stays = begun(engine, (3,), (7,))
    ticket = engine.submit([gone, stays])
    engine.close(gone)
    assert [(one.seq, one.token) for one in engine.collect(ticket)] == [(stays, 9)]
    engine.close(stays)
    engine.close(stays)
    assert engine.collect(ticket) == []


def test_a_row_that_joins_takes_the_slot_of_one_in_flight():
    engine = cycle_engine()
    gone, stays = begun(engine, (3,), (7,))
    ticket = engine.submit([gone, stays])
    engine.close(gone)
    (joins,) = begun(engine, (11, 12))
    later = engine.submit([stays, joins])
    assert [(one.seq, one.token) for one in engine.collect(ticket)] == [(stays, 9)]
    tokens = {one.seq: one.token for one in engine.collect(later)}
    assert tokens == {stays: 10, joins: 14}


def test_a_row_is_asked_for_by_its_handle_only():
    engine = cycle_engine()
    (seq,) = begun(engine, (3,))
    engine.close(seq)
    for call in (engine.wants_step, engine.ids, lambda gone: engine.submit([gone])):
        with pytest.raises(UnknownSequence):
            call(seq)


def test_handles_are_never_used_twice():
    engine = cycle_engine()
    first = engine.open(SequenceParams((1,)))
    engine.close(first)
    assert engine.open(SequenceParams((1,))) != first


def test_pieces_come_in_order():
    engine = cycle_engine()
    seq = engine.open(SequenceParams((1, 2, 3)))
    with pytest.raises(AssertionError):
        engine.prefill(seq, PrefillChunk(1, 2, is_last=False))


def test_progress_is_reported_piece_by_piece():
    engine = cycle_engine()
    seq = engine.open(SequenceParams((1, 2, 3)))
    middle = engine.prefill(seq, PrefillChunk(0, 2, is_last=False))
    assert (middle.done_tokens, middle.prompt_tokens, middle.first) == (2, 3, None)
    last = engine.prefill(seq, PrefillChunk(2, 3, is_last=True))
    assert last.done_tokens == 3
    assert last.first.token == 4


def test_a_prompt_that_leaves_no_room_is_refused_before_any_forward():
    engine = cycle_engine(context=4)
    watched = Watched(engine)
    with pytest.raises(ContextOverflow) as refused:
        engine.open(SequenceParams((1, 2, 3, 4)))
    assert (refused.value.prompt_tokens, refused.value.context_tokens) == (4, 4)
    assert watched.calls == 0
    answer = run_alone(engine, SequenceParams((1, 2, 3)))
    assert answer.tokens == [4]
    assert answer.last.finish is FinishCause.CONTEXT_EXHAUSTED
