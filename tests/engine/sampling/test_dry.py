"""DRY against the naive rule."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.params import SamplingParams
from engine.sampling.dry import DryHistory, suffix_matches

few_tokens = st.lists(st.integers(0, 3), min_size=1, max_size=200)


def params_of(last_n: int = -1, allowed: int = 2, base: float = 1.75) -> SamplingParams:
    return SamplingParams(
        dry_multiplier=0.8,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
    )


def naive(
    ids: list[int], params: SamplingParams, breakers: list[tuple[int, ...]]
) -> dict[int, int]:
    """The longest match per following token: each occurrence is walked backwards."""
    last_n = params.dry_penalty_last_n
    window = ids if last_n < 0 else ids[-last_n:] if last_n else []
    since = len(ids)
    for stop in range(len(ids), 0, -1):
        if any(tuple(ids[max(0, stop - len(b)) : stop]) == b for b in breakers):
            since = len(ids) - stop
            break
    longest: dict[int, int] = {}
    for end in range(len(window) - 1):
        length = 0
        while (
            length < since
            and length <= end
            and window[end - length] == window[len(window) - 1 - length]
        ):
            length += 1
        follower = window[end + 1]
        if (follower,) not in breakers:
            longest[follower] = max(longest.get(follower, 0), length)
    allowed = params.dry_allowed_length
    return {token: length for token, length in longest.items() if length >= allowed}


def found(history: DryHistory) -> dict[int, float]:
    penalties = history.penalties()
    if penalties is None:
        return {}
    return dict(zip(penalties[0].tolist(), penalties[1].tolist(), strict=True))


@settings(deadline=None)
@given(
    ids=few_tokens,
    last_n=st.sampled_from([-1, 1, 5, 20, 64]),
    allowed=st.integers(1, 4),
    breakers=st.lists(st.sampled_from([(0,), (1, 2), (3, 3)]), unique=True, max_size=2),
    at_once=st.booleans(),
)
def test_dry_penalises_what_the_naive_rule_penalises(
    ids: list[int], last_n: int, allowed: int, breakers: list[tuple[int, ...]], at_once: bool
) -> None:
    params = params_of(last_n, allowed)
    history = DryHistory(params, breakers)
    for stop in [len(ids)] if at_once else range(1, len(ids) + 1):
        history.extend(ids, stop)
    expected = {
        token: -0.8 * 1.75 ** (length - allowed)
        for token, length in naive(ids, params, breakers).items()
    }
    assert found(history) == pytest.approx(expected)


@given(ids=few_tokens)
def test_suffix_matches_are_the_walked_ones(ids: list[int]) -> None:
    def walked(end: int) -> int:
        length = 0
        while length <= end and ids[end - length] == ids[len(ids) - 1 - length]:
            length += 1
        return length

    assert suffix_matches(ids) == [*(walked(end) for end in range(len(ids) - 1)), 0]


def test_a_match_of_just_the_allowed_length_is_penalised() -> None:
    history = DryHistory(params_of(allowed=2), [])
    history.extend([5, 6, 7, 5, 6], 5)
    assert found(history) == pytest.approx({7: -0.8})


def test_a_breaker_stops_the_match() -> None:
    history = DryHistory(params_of(allowed=2), [(6,)])
    history.extend([5, 6, 7, 5, 6], 5)
    assert found(history) == {}


def test_a_breaker_token_is_never_penalised() -> None:
    history = DryHistory(params_of(allowed=2), [(7,)])
    history.extend([5, 6, 7, 5, 6], 5)
    assert found(history) == {}


def test_hostile_repetition_gives_a_finite_penalty() -> None:
    history = DryHistory(params_of(), [])
    history.extend([1] * 4000, 4000)
    history.extend([1] * 4001, 4001)
    penalty = found(history)[1]
    assert math.isfinite(penalty)
    assert penalty < -1e20


def test_a_copy_moves_on_its_own_and_going_back_starts_over() -> None:
    history = DryHistory(params_of(), [])
    ids = [5, 6, 7, 5, 6, 7]
    history.extend(ids, 5)
    twin = history.copy()
    twin.extend(ids, 6)
    assert found(history) == pytest.approx({7: -0.8})
    assert found(twin) == pytest.approx({5: -0.8 * 1.75})
    twin.extend(ids, 5)
    assert found(twin) == found(history)
    assert np.float32(found(twin)[7]) == np.float32(-0.8)


def test_breakers_of_several_tokens_are_allowed_by_the_thousand() -> None:
    history = DryHistory(params_of(), [*((token,) for token in range(100, 9000)), (6, 5)])
    history.extend([5, 6, 7, 5, 6, 7], 6)
    assert found(history) == pytest.approx({5: -0.8 * 1.75})


def test_allowed_length_0_penalises_whatever_followed_anything() -> None:
    """llama.cpp's boundary: a match of length 0 reaches an allowed length of 0."""
    history = DryHistory(params_of(allowed=0), [])
    history.extend([5, 6, 7], 3)
    assert found(history) == pytest.approx({6: -0.8, 7: -0.8})
