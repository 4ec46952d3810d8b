"""Penalties: an incremental window, and the newest token folded in on the device."""

import importlib
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.mlxlm import import_mlx_lm
from engine.sampling.penalties import PenaltyParams, PenaltyWindow, penalise, upload_windows

VOCAB = 50
tokens = st.lists(st.integers(0, 12), min_size=1, max_size=60)


def counted(window: PenaltyWindow) -> dict[int, int]:
    ids, counts = upload_windows([window])
    pairs = zip(np.array(ids)[0].tolist(), np.array(counts)[0].tolist(), strict=True)
    return {token: int(count) for token, count in pairs if token >= 0}


def params(repetition: float, frequency: float, presence: float) -> PenaltyParams:
    return PenaltyParams(*(mx.array([[value]]) for value in (repetition, frequency, presence)))


def penalised_slowly(
    logits: np.ndarray, seen: list[int], strengths: tuple[float, float, float]
) -> np.ndarray:
    """Llama.cpp's definition, one token after the other."""
    repetition, frequency, presence = strengths
    out = logits.astype(np.float64)
    for token, count in Counter(seen).items():
        out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
        out[token] -= frequency * count + presence
    return out


@given(ids=tokens, stops=st.lists(st.integers(0, 60), max_size=8), size=st.integers(0, 20))
def test_a_window_counts_what_a_slice_counts(ids: list[int], stops: list[int], size: int) -> None:
    window = PenaltyWindow(size)
    for stop in [min(stop, len(ids)) for stop in stops]:
        window.extend(ids, stop)
        assert counted(window) == Counter(ids[max(0, stop - size) : stop])


@given(ids=tokens)
def test_the_whole_context_is_counted_without_a_size(ids: list[int]) -> None:
    window = PenaltyWindow(None)
    for stop in range(len(ids) + 1):
        window.extend(ids, stop)
    assert counted(window) == Counter(ids)


def test_a_window_refuses_tokens_that_are_not_known_yet() -> None:
    with pytest.raises(AssertionError, match="not known yet"):
        PenaltyWindow(4).extend([1, 2, 3], 4)


def test_a_copy_moves_on_its_own() -> None:
    window = PenaltyWindow(3)
    window.extend([1, 2, 3, 4], 3)
    twin = window.copy()
    twin.extend([1, 2, 3, 4], 4)
    assert counted(window) == {1: 1, 2: 1, 3: 1}
    assert counted(twin) == {2: 1, 3: 1, 4: 1}


@settings(deadline=None)
@given(
    ids=tokens,
    size=st.integers(1, 20),
    strengths=st.tuples(
        st.sampled_from([1.0, 0.8, 1.3]),
        st.sampled_from([0.0, 0.5, -0.5]),
        st.sampled_from([0.0, 0.7]),
    ),
)
def test_penalties_equal_their_definition_with_the_newest_token_lazy(
    ids: list[int], size: int, strengths: tuple[float, float, float]
) -> None:
    logits = np.random.default_rng(len(ids)).normal(size=VOCAB).astype(np.float32) * 3
    window = PenaltyWindow(size - 1)
    window.extend(ids, len(ids) - 1)
    newest = mx.array([ids[-1] - 1]) + 1  # not evaluated
    found = penalise(
        mx.array(logits)[None],
        newest=newest,
        window=upload_windows([window]),
        params=params(*strengths),
    )
    expected = penalised_slowly(logits, ids[-size:], strengths)
    np.testing.assert_allclose(np.array(found)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_full_bucket_leaves_room_for_the_newest_token() -> None:
    ids = [*range(16), 40]
    window = PenaltyWindow(None)
    window.extend(ids, 16)
    found = penalise(
        mx.ones((1, VOCAB)),
        newest=mx.array([40]),
        window=upload_windows([window]),
        params=params(2.0, 0.0, 0.0),
    )
    halved = np.nonzero(np.array(found)[0] == 0.5)[0]
    assert halved.tolist() == ids


def test_a_row_without_penalties_is_bitwise_untouched() -> None:
    logits = mx.array(np.random.default_rng(0).normal(size=(2, VOCAB)).astype(np.float32))
    window = PenaltyWindow(5)
    window.extend([1, 2, 3], 3)
    strengths = PenaltyParams(
        mx.array([[1.5], [1.0]]), mx.array([[1.0], [0.0]]), mx.array([[1.0], [0.0]])
    )
    found = penalise(
        logits, newest=mx.array([3, -1]), window=upload_windows([window, None]), params=strengths
    )
    np.testing.assert_array_equal(np.array(found)[1], np.array(logits)[1])


@pytest.mark.parametrize("frequency", [1.0, -1e30])
def test_an_impossible_token_stays_impossible(frequency: float) -> None:
    logits = mx.full((1, VOCAB), -mx.inf)
    window = PenaltyWindow(5)
    window.extend([1, 2], 2)
    found = penalise(
        logits,
        newest=mx.array([3]),
        window=upload_windows([window]),
        params=params(1.2, frequency, 0.0),
    )
    assert (np.array(found) == -np.inf).all()


def test_the_repetition_penalty_agrees_with_mlx_lms() -> None:
    import_mlx_lm()
    reference = importlib.import_module("mlx_lm.sample_utils").make_repetition_penalty(1.3, 6)
    ids = [3, 9, 3, 7, 1, 9, 4, 4]
    logits = mx.array(np.random.default_rng(3).normal(size=(1, VOCAB)).astype(np.float32))
    window = PenaltyWindow(5)
    window.extend(ids, len(ids) - 1)
    found = penalise(
        logits,
        newest=mx.array(ids[-1:]),
        window=upload_windows([window]),
        params=params(1.3, 0.0, 0.0),
    )
    expected = reference(mx.array(ids), mx.array(np.array(logits)))
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-6)
