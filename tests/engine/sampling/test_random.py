"""Keys and noise: a function of seed, choice, position and purpose, and of nothing else."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.random import (
    BLOCK_TOKENS,
    Purpose,
    gumbel_all,
    gumbel_at,
    host_uniform,
    mix64,
    position_key,
    row_base,
)


def keys_of(seed: int, positions: range) -> mx.array:
    base = row_base(seed, 0)
    keys = [position_key(base, position, Purpose.TOKEN) for position in positions]
    return mx.array(np.array(keys, np.uint64).view(np.uint32).reshape(-1, 2))


def test_the_mix_is_splitmix64() -> None:
    """The first outputs of the published generator for state 0."""
    golden = 0x9E3779B97F4A7C15
    assert [mix64(golden * step) for step in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_seed_choice_position_and_purpose_each_change_the_key() -> None:
    keys = {
        position_key(row_base(seed, choice), position, purpose)
        for seed in range(5)
        for choice in range(5)
        for position in range(20)
        for purpose in Purpose
    }
    assert len(keys) == 5 * 5 * 20 * len(Purpose)


@given(seed=st.integers(0, 2**53 - 1), position=st.integers(0, 2**20))
def test_a_host_uniform_is_below_one(seed: int, position: int) -> None:
    assert 0 <= host_uniform(row_base(seed, 0), position, Purpose.XTC_GATE) < 1


def test_host_uniforms_are_uniform_across_positions() -> None:
    base = row_base(0, 0)
    values = np.array([host_uniform(base, p, Purpose.XTC_GATE) for p in range(4000)])
    counts = np.histogram(values, bins=10, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # 9 degrees of freedom, p = 0.001


@pytest.mark.parametrize("vocab", [1, BLOCK_TOKENS - 1, BLOCK_TOKENS, 1000])
def test_noise_is_indexed_by_token_id(vocab: int) -> None:
    keys = keys_of(7, range(3))
    everything = np.array(gumbel_all(keys, vocab))
    ids = np.random.default_rng(0).integers(0, vocab, size=(3, 40))
    few = np.array(gumbel_at(keys, mx.array(ids.astype(np.int32))))
    np.testing.assert_allclose(few, np.take_along_axis(everything, ids, axis=1), rtol=1e-6)


def test_noise_does_not_depend_on_the_batch() -> None:
    keys = keys_of(7, range(5))
    np.testing.assert_array_equal(
        np.array(gumbel_all(keys, 100))[3:4], np.array(gumbel_all(keys[3:4], 100))
    )


def test_noise_is_standard_gumbel() -> None:
    noise = np.array(gumbel_all(keys_of(3, range(20)), 5000)).ravel()
    assert np.isfinite(noise).all()
    # Mean 0.5772, deviation pi / sqrt(6); 100,000 values.
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.std() - 1.2825) < 0.02


def test_noise_is_independent_across_positions_and_tokens() -> None:
    noise = np.array(gumbel_all(keys_of(3, range(400)), 400))
    noise = (noise - noise.mean()) / noise.std()
    # A correlation of independent columns has deviation 1 / sqrt(159,600) = 0.0025.
    assert abs((noise[:-1] * noise[1:]).mean()) < 0.01
    assert abs((noise[:, :-1] * noise[:, 1:]).mean()) < 0.01
    blocks = noise[:, BLOCK_TOKENS:] * noise[:, :-BLOCK_TOKENS]
    assert abs(blocks.mean()) < 0.01


def test_a_drawn_zero_gives_finite_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for edge in (0.0, float(np.nextafter(np.float32(1), np.float32(0)))):
        monkeypatch.setattr(
            mx.random, "uniform", lambda shape, key, edge=edge: mx.full(shape, edge) + 0 * key[0]
        )
        assert np.isfinite(np.array(gumbel_all(keys_of(1, range(2)), 40))).all()
