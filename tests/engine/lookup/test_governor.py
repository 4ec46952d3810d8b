import pytest

from engine.lookup.governor import (
    FixedGovernor,
    GatedGovernor,
    Governor,
    GradedGovernor,
    Offer,
)


def budgets(governor: Governor, accepts: list[int], asks: int) -> list[int]:
    """The budget of each ask; each one above 0 takes the next accepted count, while any is left."""
    seen = []
    left = list(accepts)
    for _ in range(asks):
        budget, governor = governor.ask()
        seen.append(budget)
        if budget and left:
            governor = governor.after_verify(agreement=3, drafted=budget, accepted=left.pop(0))
    return seen


def emas(governor: GradedGovernor | GatedGovernor, accepts: list[int]) -> list[float]:
    """The mean after each verified round; rests in between are sat out."""
    seen = []
    for accepted in accepts:
        budget = 0
        while not budget:
            budget, governor = governor.ask()
        governor = governor.after_verify(agreement=3, drafted=budget, accepted=accepted)
        seen.append(governor.accepted_ema)
    return seen


def test_graded_rests_after_three_misses_and_probes_narrowly():
    accepts = [0, 0, 0, 1, 0, 0, 0]
    expected = [7, 7, 6, 0, 0, 0, 0, 4, 4, 3, 2, 0, 0, 0, 0, 2]
    assert budgets(GradedGovernor.fresh(7), accepts, 16) == expected


def test_graded_means_after_each_round():
    assert emas(GradedGovernor.fresh(7), [0, 0, 0, 1]) == [3.5, 1.75, 0.875, 0.9375]
    assert emas(GradedGovernor.fresh(7), [7, 7, 1, 1, 0, 3]) == [7, 7, 4, 2.5, 1.25, 2.125]


def test_graded_rests_double_up_to_32_while_nothing_is_accepted():
    rests = [4, 8, 16, 32, 32]
    drafted = [(7, 7, 6), (4, 3, 2), (2, 2, 2), (2, 2, 2), (2, 2, 2)]
    expected = [b for d, rest in zip(drafted, rests, strict=True) for b in (*d, *[0] * rest)] + [2]
    assert budgets(GradedGovernor.fresh(7), [0] * 15, len(expected)) == expected


def test_graded_follows_what_was_accepted():
    assert budgets(GradedGovernor.fresh(7), [7, 7, 1, 1, 0, 3], 7) == [7, 7, 7, 7, 7, 5, 6]


def test_graded_rounds_half_away_from_zero():
    # Means of 2.25 and 1.25: twice that ends in .5, which Python's round() takes to the even side.
    assert GradedGovernor(64, accepted_ema=2.25).ask()[0] == 7
    assert GradedGovernor(64, accepted_ema=1.25).ask()[0] == 5


def test_graded_stays_within_one_and_max_draft():
    assert GradedGovernor.fresh(1).ask()[0] == 1
    assert GradedGovernor(7, accepted_ema=0.0).ask()[0] == 2


@pytest.mark.parametrize(
    ("accepts", "expected", "pauses"),
    [
        pytest.param([2, 7, 7, 0, 0, 0], [2, 7, 7, 7, 7, 2], True, id="third miss in a row"),
        pytest.param([2, 0, 0, 0], [2, 7, 2, 2], True, id="trusted early"),
        pytest.param([1, 1, 0], [2, 2, 2], True, id="one accepted does not end probation"),
        pytest.param([0], [2], True, id="a miss on probation"),
        pytest.param([2, 7, 0, 0, 2, 0], [2, 7, 7, 7, 2, 7, 2], False, id="a hit resets misses"),
    ],
)
def test_gated_budgets(accepts, expected, pauses):
    asks = len(expected) + pauses
    assert budgets(GatedGovernor(7), accepts, asks) == expected + [0] * pauses


def test_gated_pause_has_no_timer():
    governor = GatedGovernor(7).after_verify(agreement=3, drafted=2, accepted=0)
    assert budgets(governor, [], 200) == [0] * 200
    assert governor.is_paused


def test_gated_resumes_on_probation_when_a_probe_comes_true():
    paused = GatedGovernor(7, accepted_ema=0.3).after_verify(agreement=3, drafted=2, accepted=0)
    assert paused.after_probe(agreement=3, confirmed=False) == paused
    assert paused.after_probe(agreement=3, confirmed=True) == GatedGovernor(7)


def test_gated_wants_probes_of_two_tokens_only_while_paused():
    assert GatedGovernor(7).probe_tokens == 0
    assert GatedGovernor(7, is_drafting=False).probe_tokens == 2


def test_gated_with_one_token_drafts_ends_probation_with_one():
    governor = GatedGovernor(1).after_verify(agreement=3, drafted=1, accepted=1)
    assert not governor.on_probation
    assert governor.ask()[0] == 1


def test_fixed_is_always_max_draft():
    assert budgets(FixedGovernor(5), [0] * 20, 20) == [5] * 20


@pytest.mark.parametrize("governor", [FixedGovernor(7), GradedGovernor.fresh(7), GatedGovernor(7)])
def test_a_budget_is_drafted_in_full_whatever_the_match(governor):
    assert governor.draft_tokens(Offer(agreement=2, proposed=5, is_pipelined=True)) == 5
    assert not governor.is_paused
