import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidParams
from engine.lookup.widths import WidthCosts, best_draft, expected_tokens

DENSE = WidthCosts((1.0, 1.40, 1.46, 1.53, 1.61, 1.69, 1.77, 1.84))
LINEAR = WidthCosts(tuple(float(width) for width in range(1, 9)))


def test_costs_are_in_pipelined_steps():
    costs = WidthCosts.from_seconds({1: 0.06, 2: 0.08}, step_seconds=0.05, max_width=2)
    assert costs.by_width == pytest.approx((1.2, 1.6))


def test_widths_between_measured_ones_lie_on_a_line():
    costs = WidthCosts.from_seconds({1: 1.0, 2: 1.4, 4: 1.6, 8: 2.0}, step_seconds=1, max_width=8)
    assert costs.by_width == pytest.approx((1.0, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0))


def test_the_last_slope_goes_on_past_the_widest_measured():
    costs = WidthCosts.from_seconds({1: 1.0, 2: 1.5}, step_seconds=1, max_width=4)
    assert costs.by_width == pytest.approx((1.0, 1.5, 2.0, 2.5))


def test_a_falling_last_slope_does_not_go_on():
    costs = WidthCosts.from_seconds({2: 1.5, 3: 1.1}, step_seconds=1, max_width=12)
    assert min(costs.by_width[2:]) == pytest.approx(1.1)


def test_unmeasured_width_one_costs_a_step():
    assert WidthCosts.from_seconds({2: 3.0}, step_seconds=2, max_width=2).by_width == (1.0, 1.5)


def test_nothing_measured_makes_no_width_a_bargain():
    costs = WidthCosts.from_seconds({}, step_seconds=2, max_width=4)
    assert costs.by_width == (1.0, 2.0, 3.0, 4.0)
    assert not costs.can_pay


@pytest.mark.parametrize("costs", [(), (1.0, 0.0), (1.0, math.nan), (1.0, math.inf), (-1.0,)])
def test_costs_that_are_no_costs_are_refused(costs):
    with pytest.raises(InvalidParams, match="width_costs"):
        WidthCosts(costs)


@pytest.mark.parametrize("step", [0.0, -1.0, math.nan, math.inf])
def test_a_step_without_time_is_refused(step):
    with pytest.raises(InvalidParams, match="a step must take time"):
        WidthCosts.from_seconds({2: 1.0}, step_seconds=step, max_width=2)


@given(chance=st.floats(0, 0.99), drafted=st.integers(0, 64))
def test_expected_tokens_are_the_geometric_sum(chance, drafted):
    closed = (1 - chance ** (drafted + 1)) / (1 - chance)
    assert expected_tokens([chance] * drafted) == pytest.approx(closed)


def test_certain_copies_draft_in_full():
    assert best_draft([1.0] * 7, DENSE) == 7


def test_unlikely_copies_are_not_drafted():
    assert best_draft([0.3] * 7, DENSE) == 0


def test_a_doubtful_tail_is_cut_off():
    assert best_draft([1.0, 1.0, 0.05, 1.0], DENSE) == 2


def test_a_cost_that_grows_with_the_width_never_pays():
    assert best_draft([1.0] * 7, LINEAR) == 0
    assert not LINEAR.can_pay
    assert DENSE.can_pay


def test_a_gain_within_the_margin_is_not_worth_it():
    assert best_draft([1.0], WidthCosts((1.0, 1.95))) == 0
    assert best_draft([1.0], WidthCosts((1.0, 1.85))) == 1


def test_what_drafting_costs_beside_the_round_is_weighed():
    costs = WidthCosts((1.2, 1.4))
    assert best_draft([0.7], costs) == 1
    assert best_draft([0.7], costs, extra_cost=0.6) == 0


def test_no_draft_is_longer_than_the_known_costs():
    assert best_draft([1.0] * 64, DENSE) == DENSE.max_draft == 7


@given(
    chances=st.lists(st.floats(0, 1), max_size=7),
    costs=st.lists(st.floats(0.5, 8), min_size=8, max_size=8),
)
def test_the_best_draft_is_the_best_of_all_lengths(chances, costs):
    table = WidthCosts(tuple(costs))
    rates = [1.05] + [
        expected_tokens(chances[:length]) / table.verify(length)
        for length in range(1, len(chances) + 1)
    ]
    assert rates[best_draft(chances, table)] == pytest.approx(max(rates))
