"""One draw for a whole batch: the same tokens whatever the company."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from engine.params import SamplingParams
from engine.sampling.plan import ChainPrograms, DrawPlan, DrawRow, draw, read_draw
from engine.sampling.row_sampler import RowSampler

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
    tokens = draw(DrawPlan.of(samplers, programs), rows, logits, newest).tokens
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
