"""The sampler of one request."""

import math

import pytest

from engine.params import SamplingParams
from engine.sampling.row_sampler import SHUT_GATE, RowSampler

VOCAB = 100


def row_sampler(
    params: SamplingParams,
    *,
    seed: int = 1,
    choice: int = 0,
    suppress_eos: bool = False,
    min_tokens: int = 0,
) -> RowSampler:
    return RowSampler(
        params,
        seed=seed,
        choice=choice,
        vocab_size=VOCAB,
        eos_ids=frozenset({2, 5, 100}),
        prompt_tokens=10,
        suppress_eos=suppress_eos,
        min_tokens=min_tokens,
    )


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=1.0, top_k=1), True),
        (SamplingParams(logprobs=3), True),
        (SamplingParams(temperature=1.0), False),
        (SamplingParams(repetition_penalty=1.1), False),
        (SamplingParams(repetition_penalty=1.1, repetition_context_size=0), True),
        (SamplingParams(dry_multiplier=1.0), False),
        (SamplingParams(logit_bias={1: 1.0}), False),
        (SamplingParams(mirostat=2), False),
    ],
)
def test_plain_greedy_is_the_argmax_of_untouched_logits(
    params: SamplingParams, plain: bool
) -> None:
    assert row_sampler(params).is_plain_greedy is plain


@pytest.mark.parametrize(
    ("params", "needs"),
    [
        (SamplingParams(temperature=1.0, repetition_penalty=1.1), False),
        (SamplingParams(temperature=1.0, xtc_probability=0.5), False),
        (SamplingParams(dry_multiplier=1.0), True),
        (SamplingParams(dry_multiplier=1.0, dry_penalty_last_n=0), False),
        (SamplingParams(mirostat=1), True),
    ],
)
def test_only_dry_and_mirostat_wait_for_the_token_before(
    params: SamplingParams, needs: bool
) -> None:
    assert row_sampler(params).needs_host is needs


def test_ignored_end_tokens_are_suppressed_and_those_outside_are_left_out() -> None:
    sampler = row_sampler(SamplingParams(logit_bias={2: math.inf, 7: 1.0}), suppress_eos=True)
    adjustment = sampler.adjustment(suppressed=False)
    assert adjustment is not None
    pairs = zip(adjustment[0].tolist(), adjustment[1].tolist(), strict=True)
    assert dict(pairs) == {2: -math.inf, 5: -math.inf, 7: 1.0}


def test_end_tokens_are_suppressed_until_min_tokens_are_written() -> None:
    sampler = row_sampler(SamplingParams(), min_tokens=3)
    assert [sampler.suppresses(position) for position in (10, 11, 12, 13)] == [
        True,
        True,
        True,
        False,
    ]
    assert sampler.adjustment(suppressed=False) is None
    assert sampler.adjustment(suppressed=True) is not None
    assert not sampler.is_plain_greedy


def test_a_context_size_of_0_is_off() -> None:
    """mlx-lm takes it as the whole history."""
    params = SamplingParams(repetition_penalty=2.0, repetition_context_size=0)
    assert row_sampler(params).window is None


def test_the_window_moves_with_the_sequence_and_back() -> None:
    sampler = row_sampler(SamplingParams(repetition_penalty=2.0, repetition_context_size=3))
    assert sampler.window is not None
    ids = [1, 2, 3, 4, 5]
    for upto, distinct in ((4, 2), (5, 2), (1, 1), (0, 0)):
        sampler.advance(ids, upto)
        assert (sampler.window.upto, len(sampler.window)) == (upto, distinct)


def test_the_xtc_gate_opens_as_often_as_it_should() -> None:
    sampler = row_sampler(SamplingParams(xtc_probability=0.3, xtc_threshold=0.2))
    opened = [sampler.xtc_threshold(position) == 0.2 for position in range(2000)]
    assert 520 < sum(opened) < 680
    never = row_sampler(SamplingParams(xtc_probability=1.0, xtc_threshold=0.9))
    assert never.xtc_threshold(3) == SHUT_GATE


def test_seed_and_choice_decide_the_keys() -> None:
    def keys(seed: int, choice: int) -> list[int]:
        sampler = row_sampler(SamplingParams(), seed=seed, choice=choice)
        return [sampler.token_key(position) for position in range(5)]

    assert keys(1, 0) == keys(1, 0)
    assert len({*keys(0, 0), *keys(1, 0), *keys(1, 1), *keys(2**53 - 1, 0)}) == 20


def test_mirostat_moves_its_bound_and_a_snapshot_carries_it() -> None:
    sampler = row_sampler(SamplingParams(temperature=1.0, mirostat=2), seed=4)
    sampler.observe(-7 * math.log(2))
    assert sampler.mu == pytest.approx(9.8)
    other = row_sampler(SamplingParams(temperature=1.0, mirostat=2), seed=9)
    other.restore(sampler.snapshot())
    assert other.mu == sampler.mu
    assert other.token_key(20) == sampler.token_key(20)


def test_observing_without_feedback_changes_nothing() -> None:
    sampler = row_sampler(SamplingParams(temperature=1.0))
    before = sampler.snapshot()
    sampler.observe(None)
    sampler.observe(-1.0)
    assert sampler.snapshot() == before
