"""Rows that share steps write what each would write alone."""

from dataclasses import replace

import pytest

from engine.engine import Engine
from engine.finish import FinishCause
from engine.kv.choose import SOLO_FAMILIES
from engine.models.reference import reference_tokens
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import storage_of
from tests.engine.rigs import (
    begun,
    cycle_engine,
    loaded,
    prefill,
    run_alone,
    run_together,
    tiny_engine,
    tiny_model,
)

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


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_rows_that_cannot_share_a_forward_answer_as_mlx_lm_does(family: str):
    model = tiny_model(family)
    engine = Engine(loaded(model, min(SOLO_FAMILIES)))
    assert engine.choice.kind == "one row at a time"
    requests = [
        SequenceParams(tuple(range(salt, salt + length)), max_tokens=30)
        for salt, length in enumerate((1, 12, 15, 16, 33))
    ]
    expected = [reference_tokens(model, one.prompt_ids, max_tokens=30) for one in requests]
    for pipelined in (True, False):
        answers = run_together(engine, requests, pipelined=pipelined)
        assert [answer.tokens for answer in answers] == expected
    # Ends that nobody knew in advance cut off what was in flight.
    for length in range(3, 20):
        ends = frozenset({expected[1][length]})
        answer = run_alone(engine, replace(requests[1], stop_ids=ends))
        assert answer.last.finish is FinishCause.EOS
        assert answer.tokens == expected[1][: expected[1].index(*ends)]


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
    fit = storage_of(engine).fit

    def noted():
        rows.append(storage_of(engine).rows)
        return fit()

    storage_of(engine).fit = noted
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
    assert storage_of(engine).arrays() == []
    assert len(answers) == 12
    for (ids, budget), tokens in answers.items():
        assert tokens == run_alone(engine, SequenceParams(ids, max_tokens=budget)).tokens


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
def test_a_prompt_of_one_token_that_joins_a_step_is_answered_as_alone(family: str):
    # Its first forward is a step: what its slot had before is not in it, and it can go on alone.
    engine = tiny_engine(family)
    params = SequenceParams((9,), max_tokens=12)
    expected = run_alone(engine, params).tokens
    beside, gone = begun(engine, (5, 6, 7), (200,) * 9)
    engine.step([beside, gone])
    engine.close(gone)
    seq = engine.open(params)
    engine.join(seq)
    for _ in range(4):
        engine.step([beside, seq])
    assert engine.answer(seq) == expected[:4]
    taken = engine.transfer.restore(engine.transfer.snapshot(seq))
    while engine.wants_step(seq):
        engine.verify(seq, ())
    while engine.wants_step(taken):
        engine.step([taken])
    assert engine.answer(seq) == engine.answer(taken) == expected
