"""Each filter against a slow NumPy version of its definition, narrow and wide."""

import importlib
import math
from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.models.mlxlm import import_mlx_lm
from engine.params import SamplingParams
from engine.sampling.chain import Stages, StepParams, run_chain, truncate
from engine.sampling.row_sampler import RowSampler
from engine.sampling.stage_params import chain_stages, stage_params, step_params

pytestmark = pytest.mark.gpu

VOCAB = 300
MARGIN = 1e-4
Floats = npt.NDArray[np.float64]


class SlowChain:
    """The filters as llama.cpp defines them, in float64, one row, one token after the other.

    ``closest`` is how near any decision came to its limit: nearer than float32 resolves, and
    both answers are right.
    """

    def __init__(self, logits: Floats) -> None:
        self.logits = {token: value for token, value in enumerate(logits) if value > -math.inf}
        self.closest = math.inf

    def kept(self, params: SamplingParams, *, xtc: bool) -> set[int]:
        self.top_n_sigma(params.top_n_sigma)
        self.top_k(params.top_k)
        self.typical(params.typical_p, params.min_keep)
        self.top_p(params.top_p, params.min_keep)
        self.min_p(params.min_p, params.min_keep)
        if xtc:
            self.xtc(params.xtc_threshold, params.min_keep)
        return set(self.logits)

    def probs(self) -> dict[int, float]:
        peak = max(self.logits.values())
        weights = {token: math.exp(value - peak) for token, value in self.logits.items()}
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    def near(self, value: float, limit: float, scale: float = 1.0) -> None:
        self.closest = min(self.closest, abs(value - limit) / scale)

    def keep(self, tokens: list[int]) -> None:
        self.logits = {token: self.logits[token] for token in tokens}

    def top_n_sigma(self, n: float) -> None:
        if n <= 0:
            return
        values = np.array(list(self.logits.values()))
        floor = values.max() - n * values.std()
        for value in values:
            self.near(value, floor)
        self.keep([token for token, value in self.logits.items() if value >= floor])

    def top_k(self, k: int) -> None:
        if k:
            self.keep(sorted(self.logits, key=lambda token: -self.logits[token])[:k])

    def by_mass(self, order: list[int], p: float, min_keep: int) -> None:
        probs, before, kept = self.probs(), 0.0, 0
        for token in order:
            self.near(before, p)
            if before >= p and kept >= max(1, min_keep):
                break
            before += probs[token]
            kept += 1
        self.keep(order[:kept])

    def typical(self, p: float, min_keep: int) -> None:
        if p >= 1:
            return
        probs = self.probs()
        entropy = -sum(prob * math.log(prob) for prob in probs.values() if prob)
        score = {token: abs(-math.log(prob) - entropy) for token, prob in probs.items() if prob}
        order = sorted(score, key=lambda token: score[token])
        for one, other in pairwise(order):
            # Two tokens that are equally typical may come in either order.
            self.near(score[one], score[other], 0.01)
        self.by_mass(order, p, min_keep)

    def top_p(self, p: float, min_keep: int) -> None:
        if p < 1:
            self.by_mass(sorted(self.logits, key=lambda token: -self.logits[token]), p, min_keep)

    def min_p(self, p: float, min_keep: int) -> None:
        if p <= 0:
            return
        floor = max(self.logits.values()) + math.log(p)
        order = sorted(self.logits, key=lambda token: -self.logits[token])
        for token in order[1:]:
            self.near(self.logits[token], floor)
        self.keep(
            [
                token
                for rank, token in enumerate(order)
                if rank < min_keep or self.logits[token] >= floor
            ]
        )

    def xtc(self, threshold: float, min_keep: int) -> None:
        probs = self.probs()
        order = sorted(probs, key=lambda token: -probs[token])
        above = [token for token in order if probs[token] >= threshold]
        for prob in probs.values():
            self.near(prob, threshold)
        if len(above) >= 2 and len(order) - (len(above) - 1) >= min_keep:
            self.keep(order[len(above) - 1 :])


def row_sampler(params: SamplingParams) -> RowSampler:
    return RowSampler(
        params, seed=5, choice=0, vocab_size=VOCAB, eos_ids=frozenset(), prompt_tokens=1
    )


def kept_by_chain(params: SamplingParams, logits: mx.array, *, xtc: bool, narrow: bool) -> set[int]:
    sampler = row_sampler(params)
    stages = chain_stages([sampler])
    assert stages is not None
    built = stage_params([sampler], stages)
    stages = replace(stages, candidates=VOCAB if narrow else None)
    steps = StepParams(xtc_threshold=mx.array([[params.xtc_threshold if xtc else 2.0]]))
    kept, ids = truncate(stages, logits, steps, built)
    alive = np.array(kept.alive())[0]
    tokens = np.arange(VOCAB) if ids is None else np.array(ids)[0]
    return set(tokens[alive].tolist())


def logits_of(seed: int, scale: float) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=VOCAB) * scale).astype(np.float32)


mass = st.floats(0.01, 1.0)
filters = st.builds(
    SamplingParams,
    temperature=st.just(1.0),
    top_n_sigma=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
    top_k=st.sampled_from([0, 2, 5, 40, 150, 299]),
    typical_p=st.one_of(st.just(1.0), mass),
    top_p=st.one_of(st.just(1.0), st.just(0.0), mass),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
    min_keep=st.sampled_from([0, 1, 3, 50]),
    xtc_probability=st.just(1.0),
    xtc_threshold=st.floats(0.001, 0.5),
)


@settings(max_examples=100, deadline=None)
@given(
    params=filters,
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
    xtc=st.booleans(),
    narrow=st.booleans(),
)
def test_the_filters_keep_what_their_definitions_keep(
    params: SamplingParams, seed: int, scale: float, xtc: bool, narrow: bool
) -> None:
    logits = logits_of(seed, scale)
    slow = SlowChain(logits.astype(np.float64))
    expected = slow.kept(params, xtc=xtc)
    assume(slow.closest > MARGIN)
    assert kept_by_chain(params, mx.array(logits)[None], xtc=xtc, narrow=narrow) == expected


ONE_FILTER = [
    SamplingParams(temperature=1.0, top_n_sigma=1.0),
    SamplingParams(temperature=1.0, top_k=7),
    SamplingParams(temperature=1.0, typical_p=0.5),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.02),
]


@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
@pytest.mark.parametrize("params", ONE_FILTER, ids=lambda p: f"{p!r}"[15:60])
def test_each_filter_alone_keeps_what_its_definition_keeps(
    params: SamplingParams, narrow: bool
) -> None:
    logits = logits_of(11, 2.0)
    slow = SlowChain(logits.astype(np.float64))
    expected = slow.kept(params, xtc=params.xtc_probability == 1)
    assert 0 < len(expected) < VOCAB
    found = kept_by_chain(
        params, mx.array(logits)[None], xtc=params.xtc_probability == 1, narrow=narrow
    )
    assert found == expected


def test_top_k_comes_before_top_p() -> None:
    """mlx-lm#388: the order decides whose mass top-p counts."""
    logits = np.full(VOCAB, -20.0, np.float32)
    logits[:4] = np.log([0.4, 0.3, 0.2, 0.1]).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.55)
    kept = kept_by_chain(params, mx.array(logits)[None], xtc=False, narrow=True)
    assert kept == {0}  # 0.4 is 0.57 of what top-k kept


@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    ("params", "kept"),
    [
        pytest.param(SamplingParams(temperature=1, top_p=0), {0}, id="top-p 0 keeps one"),
        pytest.param(SamplingParams(temperature=1, min_p=1), {0}, id="min-p 1 keeps the best"),
        pytest.param(SamplingParams(temperature=1, top_k=2, top_p=0.01), {0}, id="small top-p"),
        pytest.param(
            SamplingParams(temperature=1, top_k=10**6, top_p=0.01), {0}, id="top-k above V is off"
        ),
        pytest.param(
            SamplingParams(temperature=1, xtc_probability=1, xtc_threshold=0.9, top_k=3),
            {0, 1, 2},
            id="an XTC threshold above one half is inert",
        ),
        pytest.param(
            SamplingParams(temperature=1, xtc_probability=1, xtc_threshold=0.1, top_k=3),
            {2},
            id="XTC keeps the least probable of those above the threshold",
        ),
        pytest.param(
            SamplingParams(temperature=1, xtc_probability=1, xtc_threshold=0.25, top_k=3),
            {1, 2},
            id="and what was below it",
        ),
        pytest.param(
            SamplingParams(temperature=1, xtc_probability=1, xtc_threshold=0.45, top_k=3),
            {0, 1, 2},
            id="one token above the threshold stays",
        ),
        pytest.param(
            SamplingParams(
                temperature=1, xtc_probability=1, xtc_threshold=0.1, top_k=3, min_keep=2
            ),
            {0, 1, 2},
            id="XTC does nothing when too few would be left",
        ),
    ],
)
def test_limits(params: SamplingParams, kept: set[int], narrow: bool) -> None:
    logits = np.full(VOCAB, -20.0, np.float32)
    logits[:3] = np.log([0.5, 0.3, 0.2]).astype(np.float32)
    xtc = params.xtc_probability == 1 and params.xtc_threshold <= 0.5
    assert kept_by_chain(params, mx.array(logits)[None], xtc=xtc, narrow=narrow) == kept


@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
def test_tokens_that_tie_with_the_last_kept_one_are_kept(narrow: bool) -> None:
    logits = np.full(VOCAB, -20.0, np.float32)
    logits[[5, 9, 200]] = 1.0
    logits[7] = 2.0
    tied = {5, 7, 9, 200}
    for params in (
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.6),
    ):
        assert kept_by_chain(params, mx.array(logits)[None], xtc=False, narrow=narrow) == tied


POSITIONS = range(40)


def chosen(params: SamplingParams, logits: npt.NDArray[np.float32], *, narrow: bool) -> list[int]:
    """What one row draws at forty positions, all at once."""
    samplers = [row_sampler(params)] * len(POSITIONS)
    stages = chain_stages(samplers)
    assert stages is not None
    params = stage_params(samplers, stages)
    steps = step_params(stages, samplers, POSITIONS)
    keys = np.array([samplers[0].token_key(p) for p in POSITIONS], np.uint64).view(np.uint32)
    batch = mx.broadcast_to(mx.array(logits)[None], (len(POSITIONS), VOCAB))
    stages = replace(stages, candidates=VOCAB if narrow else None)
    drawn = run_chain(stages, batch, mx.array(keys.reshape(-1, 2)), steps, params)
    return [int(token) for token in np.array(drawn.tokens)]


@settings(max_examples=25, deadline=None)
@given(params=filters, seed=st.integers(0, 2**16), temperature=st.floats(0.1, 3.0))
def test_narrow_and_wide_draw_the_same_token(
    params: SamplingParams, seed: int, temperature: float
) -> None:
    logits = logits_of(seed, 2.0)
    slow = SlowChain(logits.astype(np.float64))
    slow.kept(params, xtc=True)
    assume(slow.closest > MARGIN)
    params = replace(params, temperature=temperature, logit_bias={})
    assert chosen(params, logits, narrow=True) == chosen(params, logits, narrow=False)


@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
@pytest.mark.parametrize("temperature", [1e-9, 1e-38, 5e-324])
def test_a_vanishing_temperature_takes_the_best_token(temperature: float, narrow: bool) -> None:
    logits = logits_of(3, 1.0)
    best = int(logits.argmax())
    assert set(chosen(SamplingParams(temperature=temperature), logits, narrow=narrow)) == {best}


def test_a_huge_temperature_draws_from_all() -> None:
    tokens = chosen(SamplingParams(temperature=1e30), logits_of(3, 3.0), narrow=False)
    assert len(set(tokens)) > 30


def test_temperature_does_not_move_the_filters() -> None:
    logits = np.full(VOCAB, -20.0, np.float32)
    logits[:3] = np.log([0.5, 0.3, 0.2]).astype(np.float32)
    hot = SamplingParams(temperature=50.0, top_p=0.6)
    assert set(chosen(hot, logits, narrow=False)) == {0, 1}


@pytest.mark.parametrize(
    ("spread", "exponent"), [(0.5, 1.0), (2.0, 1.5), (0.3, 0.0)], ids=["in", "clipped", "flat"]
)
def test_dynamic_temperature_follows_the_entropy(spread: float, exponent: float) -> None:
    params = SamplingParams(
        temperature=0.9, top_k=20, dynatemp_range=spread, dynatemp_exponent=exponent
    )
    logits = logits_of(8, 2.0)
    kept = sorted(SlowChain(logits.astype(np.float64)).kept(params, xtc=False))
    slow = SlowChain(logits.astype(np.float64))
    slow.top_k(20)
    probs = np.array([slow.probs()[token] for token in kept])
    share = -(probs * np.log(probs)).sum() / math.log(len(kept))
    low, high = max(0.0, 0.9 - spread), 0.9 + spread
    equal = SamplingParams(temperature=low + (high - low) * share**exponent, top_k=20)
    assert chosen(params, logits, narrow=True) == chosen(equal, logits, narrow=True)
    assert chosen(params, logits, narrow=False) == chosen(equal, logits, narrow=False)


def test_a_row_whose_every_token_is_suppressed_still_gives_a_token() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.9, min_p=0.1, top_k=5)
    assert set(chosen(params, logits, narrow=True)) == {0}
    assert set(chosen(params, logits, narrow=False)) == {0}


def test_draws_follow_the_softmax() -> None:
    probs = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    logits[0, :6] = np.log(probs)
    rows = 4000
    keys = np.random.default_rng(1).integers(0, 2**32, size=(rows, 2)).astype(np.uint32)
    sampler = row_sampler(SamplingParams(temperature=1.0, top_k=50))
    stages = chain_stages([sampler])
    assert stages is not None
    batch = mx.broadcast_to(mx.array(logits), (rows, VOCAB))
    params = stage_params([sampler] * rows, stages)
    drawn = run_chain(stages, batch, mx.array(keys), StepParams(), params)
    counts = np.bincount(np.array(drawn.tokens), minlength=6)
    chi_square = ((counts - rows * probs) ** 2 / (rows * probs)).sum()
    assert chi_square < 20.5  # 5 degrees of freedom, p = 0.001; the keys are fixed


def test_stages_that_no_row_uses_are_not_built() -> None:
    sampler = row_sampler(SamplingParams(temperature=1.0))
    assert chain_stages([sampler, None]) == Stages(candidates=None, greedy_rows=False)


@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    ("name", "value", "params"),
    [
        ("apply_top_k", 7, SamplingParams(temperature=1.0, top_k=7)),
        ("apply_top_p", 0.8, SamplingParams(temperature=1.0, top_p=0.8)),
        ("apply_min_p", 0.1, SamplingParams(temperature=1.0, min_p=0.1)),
    ],
)
def test_the_filters_agree_with_mlx_lms(
    name: str, value: float, params: SamplingParams, narrow: bool
) -> None:
    import_mlx_lm()
    reference = getattr(importlib.import_module("mlx_lm.sample_utils"), name)
    for seed in range(5):
        logits = mx.array(logits_of(seed, 2.0))[None]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.disable_compile()
        try:
            expected = np.array(reference(logprobs, value))[0]
        finally:
            mx.enable_compile()
        found = kept_by_chain(params, logits, xtc=False, narrow=narrow)
        assert found == set(np.nonzero(expected > -np.inf)[0].tolist())
