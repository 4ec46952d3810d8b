"""Order of calls, the length law and rows that come and go, on models whose answers are known."""

import mlx.core as mx
import pytest

from engine import guard
from engine.errors import ContextOverflow, EvalFailed, UnknownSequence
from engine.finish import FinishCause
from engine.params import LoopRule, SamplingParams, SequenceParams
from engine.prefill import PrefillPiece
from tests.engine.rigs import (
    Watched,
    assert_length_law,
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


def begun(engine, *prompts: tuple[int, ...], **params):
    """Rows that decode."""
    seqs = []
    for ids in prompts:
        seqs.append(engine.open(SequenceParams(ids, **params)))
        prefill(engine, seqs[-1])
    return seqs


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
    assert len(answer.tokens) == 10 - 1 - 3
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
    rewind = engine._storage.rewind

    def watched(slot: int, tokens: int) -> None:
        noted.append(tokens)
        rewind(slot, tokens)

    monkeypatch.setattr(engine._storage, "rewind", watched)
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
    row = engine._ledger.rows[seq]
    # An end token is not appended to the answer, but the forward before it was its last token's.
    held = row.prompt_tokens + row.written - (cause is not FinishCause.EOS)
    assert engine._storage.length(row.slot) == held


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
    row = engine._ledger.rows[stops]
    assert engine._storage.length(row.slot) == row.prompt_tokens + row.written
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
        engine.prefill(seq, PrefillPiece(1, 2, is_last=False))


def test_progress_is_told_piece_by_piece():
    engine = cycle_engine()
    seq = engine.open(SequenceParams((1, 2, 3)))
    middle = engine.prefill(seq, PrefillPiece(0, 2, is_last=False))
    assert (middle.done_tokens, middle.prompt_tokens, middle.first) == (2, 3, None)
    last = engine.prefill(seq, PrefillPiece(2, 3, is_last=True))
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


# -- rows in company


COMPANY = [
    SequenceParams((5, 6, 7), SamplingParams(temperature=1, seed=1), max_tokens=24),
    SequenceParams((9,), SamplingParams(temperature=0.7, top_k=40, seed=2), max_tokens=11),
    SequenceParams(
        tuple(range(30, 50)),
        SamplingParams(temperature=1, top_p=0.9, repetition_penalty=1.2, seed=3),
        max_tokens=19,
    ),
    SequenceParams(
        (100, 101),
        SamplingParams(temperature=1, min_p=0.02, frequency_penalty=0.5, seed=4),
        max_tokens=30,
    ),
    SequenceParams((200,) * 5, SamplingParams(presence_penalty=1.0), max_tokens=16),
    SequenceParams((1, 2), SamplingParams(temperature=1, mirostat=2, seed=6), max_tokens=14),
    SequenceParams(
        (40, 41), SamplingParams(temperature=1.5, xtc_probability=0.5, seed=7), max_tokens=9
    ),
]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "hybrid"])
def test_the_same_seed_writes_the_same_alone_and_in_company(family: str):
    engine = tiny_engine(family)
    together = run_together(engine, COMPANY)
    stepwise = run_together(engine, COMPANY, pipelined=False)
    for params, piped, stepped in zip(COMPANY, together, stepwise, strict=True):
        alone = run_alone(engine, params)
        assert len(alone.tokens) == params.max_tokens
        assert piped.tokens == alone.tokens
        assert stepped.tokens == alone.tokens
        assert run_alone(engine, params, pipelined=False).tokens == alone.tokens


def test_different_seeds_write_different_answers():
    engine = tiny_engine()
    answers = {
        tuple(
            run_alone(
                engine,
                SequenceParams((5,), SamplingParams(temperature=1, seed=seed), max_tokens=8),
            ).tokens
        )
        for seed in (0, 1, 2, 11111, 22222, 33333)
    }
    assert len(answers) == 6


def test_no_seed_is_a_new_seed_each_time():
    # mlx-lm#1439: a compiled sampler had frozen the random state.
    engine = tiny_engine()
    params = SequenceParams((5,), SamplingParams(temperature=1), max_tokens=8)
    assert len({tuple(run_alone(engine, params).tokens) for _ in range(5)}) == 5


def test_rows_with_and_without_penalties_share_a_step():
    # mlx-lm#1472: such a mix crashed.
    engine = cycle_engine()
    plain, banned = begun(engine, (3,), (3,))
    engine.close(banned)
    seq = engine.open(SequenceParams((3,), SamplingParams(logit_bias={6: -50.0})))
    prefill(engine, seq)
    tokens = [{one.seq: one.token for one in engine.step([plain, seq])} for _ in range(2)]
    assert [one[plain] for one in tokens] == [5, 6]
    assert tokens[0][seq] == 5
    assert tokens[1][seq] != 6


def test_a_pool_that_shrinks_under_steps_in_flight_keeps_every_row_right():
    engine = tiny_engine()
    budgets = (3, 40, 5, 2, 25, 7, 4, 6, 3, 33)
    requests = [
        SequenceParams((salt + 1, salt + 2), max_tokens=budget)
        for salt, budget in enumerate(budgets)
    ]
    rows = []
    fit = engine._storage.fit

    def noted():
        rows.append(engine._storage.rows)
        return fit()

    engine._storage.fit = noted
    together = run_together(engine, requests)
    assert max(rows) >= len(requests)
    assert min(rows) <= 3
    for params, answer in zip(requests, together, strict=True):
        assert answer.tokens == run_alone(engine, params).tokens


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_rows_that_come_and_go_answer_as_alone(family: str):
    engine = tiny_engine(family)
    waiting = [
        SequenceParams(tuple(range(salt, salt + 3 + 5 * (salt % 4))), max_tokens=3 + 7 * (salt % 3))
        for salt in range(12)
    ]
    live, answers, ticket, tick = {}, {}, None, 0
    while waiting or live:
        if waiting and tick % 3 == 0:
            params = waiting.pop()
            seq = engine.open(params)
            answers[seq] = [prefill(engine, seq).token]
            live[seq] = params
        tick += 1
        ready = [seq for seq in live if engine.wants_step(seq)]
        later = engine.submit(ready) if ready else None
        for outcome in engine.collect(ticket) if ticket else ():
            answers[outcome.seq].append(outcome.token)
            if outcome.is_final:
                params = live.pop(outcome.seq)
                engine.close(outcome.seq)
                tokens = answers.pop(outcome.seq)
                answers[params.prompt_ids, params.max_tokens] = tokens
        ticket = later
    assert engine._storage.arrays() == []
    assert len(answers) == 12
    for (ids, budget), tokens in answers.items():
        assert tokens == run_alone(engine, SequenceParams(ids, max_tokens=budget)).tokens


# -- E4: what fails, and what goes on


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("pipelined", [True, False])
def test_a_forward_that_raises_ends_its_rows_and_the_engine_goes_on(failing, pipelined):
    engine = cycle_engine()
    watched = Watched(engine)
    watched.fails_in = lambda call: call == failing
    answers = run_together(
        engine,
        [SequenceParams((3, 4), max_tokens=8), SequenceParams((9, 10), max_tokens=8)],
        pipelined=pipelined,
    )
    failed = [answer for answer in answers if answer.last.error is not None]
    assert len(failed) == (1 if failing <= 4 else 2)
    for answer in failed:
        assert isinstance(answer.last.error, EvalFailed)
        assert "the device fell over" in str(answer.last.error)
    assert [answer.tokens for answer in answers if answer not in failed] in (
        [],
        [[5, 6, 7, 8, 9, 10, 11, 12]],
        [[11, 12, 13, 14, 15, 0, 1, 2]],
    )
    assert engine._storage.arrays() == []
    watched.fails_in = lambda call: False
    assert run_alone(engine, SequenceParams((3,), max_tokens=3)).tokens == [4, 5, 6]


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_shared_failure_counts_once(pipelined: bool):
    engine = cycle_engine()
    watched = Watched(engine)
    watched.fails_in = lambda call: call == 8
    requests = [SequenceParams((3, 4), max_tokens=9) for _ in range(3)]
    answers = run_together(engine, requests, pipelined=pipelined)
    assert all(isinstance(answer.last.error, EvalFailed) for answer in answers)
    assert engine.health.failures == 1


def test_eight_failures_in_a_row_make_the_engine_sick_and_a_success_well():
    engine = cycle_engine()
    watched = Watched(engine)
    watched.fails_in = lambda call: True
    for _ in range(8):
        assert engine.health.ok
        run_alone(engine, SequenceParams((3,)))
    assert not engine.health.ok
    watched.fails_in = lambda call: False
    run_alone(engine, SequenceParams((3,), max_tokens=1))
    assert engine.health.ok


def test_logits_that_are_not_numbers_end_that_row_only():
    engine = cycle_engine()
    spoilt, healthy = begun(engine, (3,), (9,))
    watched = Watched(engine)
    slot = engine._ledger.rows[spoilt].slot

    def spoil(call: int, logits: mx.array) -> mx.array:
        return logits.at[slot].add(mx.nan)

    watched.spoils = spoil
    outcomes = {one.seq: one for one in engine.step([spoilt, healthy])}
    assert type(outcomes[spoilt].error).__name__ == "NonFiniteLogits"
    assert outcomes[healthy].token == 11
    assert engine.health.ok
    assert engine.health.failures == 0


@pytest.mark.xfail(strict=True, reason="collect counts the failure again for the ticket behind it")
def test_a_read_that_fails_ends_the_rows_of_that_step_once(monkeypatch):
    engine = cycle_engine()
    seqs = begun(engine, (3,), (9,))
    ticket, later = engine.submit(seqs), engine.submit(seqs)

    def fails(array: mx.array) -> list:
        raise EvalFailed("lost the device")

    monkeypatch.setattr(guard, "read", fails)
    outcomes = engine.collect(ticket)
    assert [one.seq for one in outcomes] == seqs
    assert all(isinstance(one.error, EvalFailed) for one in outcomes)
    assert engine.collect(later) == []
    assert engine.health.failures == 1


@pytest.mark.xfail(strict=True, reason="settle cuts a lost row's old slot, now another row's")
def test_arrays_that_cannot_be_computed_lose_every_row_but_not_the_engine(monkeypatch):
    engine = cycle_engine()
    struck, other, third = begun(engine, (3,), (9,), (1,))
    watched = Watched(engine)
    watched.fails_in = lambda call: call == 1
    evaluate = guard.evaluate

    def fails(arrays) -> None:
        raise EvalFailed("gone")

    monkeypatch.setattr(guard, "evaluate", fails)
    (outcome,) = engine.step([struck])
    monkeypatch.setattr(guard, "evaluate", evaluate)
    assert isinstance(outcome.error, EvalFailed)
    # Rows opened meanwhile take the slots anew; those that were lost must not touch them.
    seqs = begun(engine, (5, 6), (7,))
    ticket = engine.submit([other, *seqs])
    outcomes = {one.seq: one for one in engine.collect(ticket)}
    assert isinstance(outcomes[other].error, EvalFailed)
    assert [outcomes[seq].token for seq in seqs] == [8, 9]
    assert_length_law(engine, seqs)
    engine.close(seqs[1])
    for _ in range(3):
        engine.step(seqs[:1])
    assert engine.ids(seqs[0]) == (5, 6, 7, 8, 9, 10, 11)
    for seq in (struck, other, third):
        engine.close(seq)
    assert_length_law(engine, seqs[:1])
