"""One draw for a whole batch: the same tokens whatever the company."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engine.params import SamplingParams
from engine.sampling import plan as plan_module
from engine.sampling.chain import Stages, run_chain
from engine.sampling.plan import ChainPrograms, DrawPlan, DrawRow, draw, read_draw
from engine.sampling.row_sampler import RowSampler

pytestmark = pytest.mark.gpu

VOCAB = 3000
EOS = frozenset({2, 5})

KINDS = {
    "greedy": SamplingParams(),
    "plain": SamplingParams(temperature=1.0),
    "top-p": SamplingParams(temperature=0.7, top_p=0.9),
    "top-k": SamplingParams(temperature=1.0, top_k=40),
    "server default": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "min-p": SamplingParams(temperature=1.5, min_p=0.1),
    "typical": SamplingParams(temperature=1.0, typical_p=0.6),
    "sigma": SamplingParams(temperature=2.0, top_n_sigma=1.5),
    "xtc": SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.05),
    "dynamic": SamplingParams(temperature=1.0, dynatemp_range=0.8, dynatemp_exponent=1.3),
    "min-keep": SamplingParams(temperature=1.0, top_p=0.1, min_p=0.9, min_keep=7),
    "penalised": SamplingParams(
        temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2
    ),
    "penalised greedy": SamplingParams(repetition_penalty=1.3),
    "biased": SamplingParams(temperature=1.0, logit_bias={7: 3.0, 8: -np.inf}),
    "dry": SamplingParams(temperature=1.0, dry_multiplier=0.8),
    "mirostat 1": SamplingParams(temperature=1.0, mirostat=1),
    "mirostat 2": SamplingParams(temperature=1.0, mirostat=2),
    "large top-k": SamplingParams(temperature=1.0, top_k=2000),
}


def row_sampler(params: SamplingParams, seed: int = 1, **overrides: object) -> RowSampler:
    facts: dict[str, object] = {
        "choice": 0,
        "vocab_size": VOCAB,
        "eos_ids": EOS,
        "prompt_tokens": 8,
    }
    return RowSampler(params, seed=seed, **(facts | overrides))  # type: ignore[arg-type]


def random_logits(rows: int, *, vocab: int = VOCAB, seed: int = 0) -> mx.array:
    values = np.random.default_rng(seed).normal(size=(rows, vocab)) * 3
    return mx.array(values.astype(np.float32))


def drawn(
    samplers: Sequence[RowSampler | None],
    logits: mx.array,
    *,
    position: int = 20,
    programs: ChainPrograms | None = None,
) -> list[int]:
    ids = [i % 7 for i in range(position)]
    rows = [DrawRow(sampler, position, ids) for sampler in samplers]
    newest = mx.array([ids[-1]] * len(rows), mx.int32)
    tokens = draw(DrawPlan(samplers, programs), rows, logits, newest).tokens
    return [int(token) for token in np.array(tokens)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_draws_the_same_token_alone_and_in_any_company(kind: str) -> None:
    logits = random_logits(1, seed=3)
    alone = [drawn([row_sampler(KINDS[kind])], logits, position=p)[0] for p in range(20, 26)]
    company = [row_sampler(params, seed=9) for params in KINDS.values()]
    for place in (0, 5, len(company)):
        rows = [*company[:place], row_sampler(KINDS[kind]), *company[place:]]
        others = random_logits(len(rows), seed=4)
        batch = mx.concatenate([others[:place], logits, others[place + 1 :]])
        together = [drawn(rows, batch, position=p)[place] for p in range(20, 26)]
        assert together == alone


def test_rows_that_share_logits_but_not_seeds_draw_differently() -> None:
    """mlx-lm#1245: three seeds, three texts; each again, the same text."""

    def text(seed: int) -> list[int]:
        sampler = row_sampler(SamplingParams(temperature=1.0), seed)
        logits = random_logits(1, seed=1)
        return [drawn([sampler], logits, position=p)[0] for p in range(10, 22)]

    texts = [text(seed) for seed in (11111, 22222, 33333)]
    assert len({tuple(one) for one in texts}) == 3
    assert [text(seed) for seed in (11111, 22222, 33333)] == texts


def test_choices_of_one_request_draw_differently() -> None:
    logits = random_logits(1, seed=1)
    texts = [
        tuple(
            drawn([row_sampler(KINDS["plain"], 7, choice=choice)], logits, position=p)[0]
            for p in range(10, 20)
        )
        for choice in range(3)
    ]
    assert len(set(texts)) == 3


def test_greedy_ties_go_to_the_lowest_id_alone_and_in_company() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [40, 700, 2999]] = 1.5
    tied = mx.array(logits)
    company = [row_sampler(KINDS["server default"]), row_sampler(KINDS["top-p"], 2)]
    greedy = row_sampler(SamplingParams())
    assert drawn([greedy], tied) == [40]
    assert drawn([greedy], tied.astype(mx.bfloat16)) == [40]
    for place in range(3):
        rows = [*company[:place], greedy, *company[place:]]
        assert drawn(rows, mx.broadcast_to(tied, (3, VOCAB)))[place] == 40


def test_all_greedy_rows_take_the_argmax_of_the_logits_as_they_are() -> None:
    logits = random_logits(3).astype(mx.bfloat16)
    plan = DrawPlan([row_sampler(SamplingParams()), None, row_sampler(SamplingParams())])
    assert plan.is_plain_greedy
    rows = [DrawRow(sampler, 9) for sampler in plan.samplers]
    tokens = draw(plan, rows, logits, mx.zeros((3,), mx.int32)).tokens
    assert tokens.dtype == mx.int32
    assert np.array(tokens).tolist() == np.array(mx.argmax(logits, axis=-1)).tolist()


def test_twenty_temperatures_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm builds a kernel for each distinct value."""
    traced: list[Stages] = []

    def counted(stages: Stages, *rest: Any) -> Any:
        traced.append(stages)
        return run_chain(stages, *rest)

    monkeypatch.setattr(plan_module, "run_chain", counted)
    programs = ChainPrograms()
    logits = random_logits(2)
    for step in range(20):
        params = SamplingParams(temperature=0.5 + step / 20, min_p=0.1 + step / 40)
        samplers = [row_sampler(params), row_sampler(SamplingParams())]
        assert drawn(samplers, logits, programs=programs) == drawn(samplers, logits)
    eager = 20
    assert len(traced) == eager + 1
    assert len(programs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["top-p", "xtc", "mirostat 2"])
def test_a_compiled_chain_draws_the_same_token(kind: str) -> None:
    logits = random_logits(1)
    sampler = row_sampler(KINDS[kind])
    assert drawn([sampler], logits) == drawn([sampler], logits, programs=ChainPrograms())


@pytest.mark.parametrize("kind", ["penalised", "penalised greedy", "dry", "server default", "xtc"])
def test_a_verify_round_draws_what_single_steps_draw(kind: str) -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 1, 4, 1]
    draft = [5, 9, 2, 6]
    hypothetical = ids + draft
    logits = random_logits(len(draft) + 1, seed=2)
    logits[:, 0:10] += 4  # the tokens of the history matter
    sampler = row_sampler(KINDS[kind], dry_breakers=((8,),))
    steps = [
        drawn_at(row_sampler(KINDS[kind], dry_breakers=((8,),)), hypothetical, place, logits)
        for place in range(len(ids), len(hypothetical) + 1)
    ]
    plan = DrawPlan([sampler] * (len(draft) + 1))
    rows = [DrawRow(sampler, len(ids) + j, hypothetical) for j in range(len(draft) + 1)]
    newest = mx.array(hypothetical[len(ids) - 1 :], mx.int32)
    assert np.array(draw(plan, rows, logits, newest).tokens).tolist() == steps
    # The draft left the sampler where it was: after a rejection it continues from the true ids.
    again = drawn_at(sampler, [*ids, 7], len(ids) + 1, logits)
    fresh = row_sampler(KINDS[kind], dry_breakers=((8,),))
    assert again == drawn_at(fresh, [*ids, 7], len(ids) + 1, logits)


def drawn_at(sampler: RowSampler, ids: list[int], position: int, logits: mx.array) -> int:
    row = position - 15
    one = DrawRow(sampler, position, ids[:position] if sampler.needs_host else ids[: position - 1])
    newest = mx.array([ids[position - 1]], mx.int32)
    tokens = draw(DrawPlan([sampler]), [one], logits[row : row + 1], newest).tokens
    return int(np.array(tokens)[0])


def test_the_newest_token_may_be_lazy_and_counts() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [11, 12]] = [2.0, 1.9]
    sampler = row_sampler(SamplingParams(repetition_penalty=2.0, repetition_context_size=1))
    lazy = mx.argmax(mx.array(logits), axis=-1).astype(mx.int32)
    rows = [DrawRow(sampler, 5, [1, 2, 3, 4])]
    tokens = draw(DrawPlan([sampler]), rows, mx.array(logits), lazy).tokens
    assert np.array(tokens).tolist() == [12]


@pytest.mark.parametrize("suppress", [{"suppress_eos": True}, {"min_tokens": 5}])
def test_a_suppressed_end_token_is_never_drawn(suppress: dict[str, object]) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [2, 5]] = [50.0, np.inf]
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_k=20)):
        sampler = row_sampler(params, **suppress)
        assert drawn([sampler], mx.array(logits), position=12)[0] not in EOS


def test_an_end_token_may_come_once_min_tokens_are_written() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 5] = 50.0
    sampler = row_sampler(SamplingParams(), min_tokens=5)
    assert drawn([sampler], mx.array(logits), position=12)[0] not in EOS
    assert drawn([sampler], mx.array(logits), position=13) == [5]


@pytest.mark.parametrize("bias", [np.inf, 1e38])
def test_an_infinite_bias_forces_its_token(bias: float) -> None:
    sampler = row_sampler(SamplingParams(temperature=1.0, top_p=0.9, logit_bias={77: bias}))
    assert drawn([sampler], random_logits(1)) == [77]


def test_rows_with_and_without_penalties_share_a_batch() -> None:
    """mlx-lm#1472."""
    tokens = drawn([row_sampler(KINDS["penalised"]), row_sampler(KINDS["plain"])], random_logits(2))
    assert len(tokens) == 2


def test_every_kind_of_row_fits_one_batch_with_inactive_rows() -> None:
    samplers = [*(row_sampler(params) for params in KINDS.values()), None, None]
    tokens = drawn(samplers, random_logits(len(samplers)))
    assert all(0 <= token < VOCAB for token in tokens)


def test_logprobs_are_of_the_model_and_only_for_rows_that_ask() -> None:
    logits = random_logits(3)
    samplers = [
        row_sampler(SamplingParams(logprobs=2, logit_bias={4: np.inf})),
        row_sampler(SamplingParams(temperature=1.0)),
        None,
    ]
    rows = [DrawRow(sampler, 9, [1] * 9) for sampler in samplers]
    drawing = draw(DrawPlan(samplers), rows, logits, mx.array([1, 1, 1]))
    reading = read_draw(drawing, [np.array(array).tolist() for array in drawing.arrays()])
    assert reading.tokens[0] == 4
    assert reading.logprobs[1:] == (None, None)
    assert reading.feedback == (None, None, None)
    asked = reading.logprobs[0]
    assert asked is not None
    exact = np.array(logits)[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    assert asked.chosen.logprob == pytest.approx(exact[4], abs=1e-5)
    assert [one.token for one in asked.top] == np.argsort(-exact)[:2].tolist()


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise_near_its_target(version: int) -> None:
    params = SamplingParams(temperature=1.0, mirostat=version, mirostat_tau=3.0, mirostat_eta=0.2)
    sampler = row_sampler(params)
    plan = DrawPlan([sampler])
    surprises = []
    for position in range(10, 160):
        logits = random_logits(1, seed=position)
        drawing = draw(plan, [DrawRow(sampler, position, [1] * position)], logits, mx.array([1]))
        reading = read_draw(drawing, [np.array(array) for array in drawing.arrays()])
        feedback = reading.feedback[0]
        assert feedback is not None
        sampler.observe(feedback)
        surprises.append(-feedback / np.log(2))
    assert np.mean(surprises[50:]) == pytest.approx(3.0, abs=0.5)


def test_mirostat_at_temperature_0_takes_the_best_token() -> None:
    logits = random_logits(1)
    sampler = row_sampler(SamplingParams(mirostat=2))
    assert drawn([sampler], logits) == [int(np.array(logits).argmax())]


def test_a_draw_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = [*(row_sampler(params) for params in KINDS.values()), None]
    plan = DrawPlan(samplers)
    rows = [DrawRow(sampler, 20, [i % 7 for i in range(20)]) for sampler in samplers]
    poisoned = mx.zeros((len(rows),)).astype(mx.int32)
    calls: list[object] = []
    for name in ("eval", "async_eval", "synchronize"):
        monkeypatch.setattr(mx, name, lambda *args: calls.append(args))
    draw(plan, rows, random_logits(len(rows)), poisoned)
    assert calls == []
