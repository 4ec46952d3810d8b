import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidParams
from engine.lookup.widths import (
    WidthCosts,
    best_draft,
    costs_beside,
    expected_tokens,
    share_pays,
)

DENSE = WidthCosts((1.0, 1.40, 1.46, 1.53, 1.61, 1.69, 1.77, 1.84))
LINEAR = WidthCosts(tuple(float(width) for width in range(1, 9)))


def test_costs_are_in_pipelined_steps():
    costs = WidthCosts.from_seconds({1: 0.06, 2: 0.08}, step_seconds=0.05, max_width=2)
    assert costs.by_width == pytest.approx((1.2, 1.6))


def test_widths_between_measured_ones_lie_on_a_line():
    costs = WidthCosts.from_seconds({1: 1.0, 2: 1.4, 4: 1.6, 8: 2.0}, step_seconds=1, max_width=8)
    assert costs.by_width == pytest.approx((1.0, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0))


def test_the_last_slope_continues_past_the_widest_measured():
    costs = WidthCosts.from_seconds({1: 1.0, 2: 1.5}, step_seconds=1, max_width=4)
    assert costs.by_width == pytest.approx((1.0, 1.5, 2.0, 2.5))


def test_a_falling_last_slope_does_not_continue():
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


def test_what_drafting_costs_besides_the_round_is_weighed():
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


# -- beside other rows

GPU = WidthCosts((1.15, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2))
"""Any forward takes about as long as a step."""


def test_a_forward_over_more_tokens_than_measured_follows_the_last_slope():
    assert DENSE.forward(8) == 1.84
    assert DENSE.forward(16) == pytest.approx(1.84 + 8 * (1.84 - 1.53) / 4)
    assert LINEAR.forward(32) == pytest.approx(32)
    assert GPU.forward(64) == pytest.approx(1.2)
    assert WidthCosts((1.0,)).forward(3) == pytest.approx(3.0)


def test_a_step_of_one_row_is_the_unit_whatever_its_read_costs():
    assert GPU.step(1) == DENSE.step(1) == 1.0
    assert GPU.step(4) == pytest.approx(1.05)


def test_alone_a_round_costs_what_was_measured():
    assert costs_beside(DENSE, 0, shares=True) is DENSE


@given(others=st.integers(1, 8), shares=st.booleans())
def test_alongside_others_a_round_costs_the_tokens_that_all_would_have_written(others, shares):
    """The obvious way: in the round's time every row would have written so many plain tokens."""
    priced = costs_beside(DENSE, others, shares=shares)
    for draft in range(1, 8):
        spent = DENSE.verify(draft) + DENSE.step(others)
        if shares:
            spent = min(spent, DENSE.forward((draft + 1) * (others + 1)))
        plain_tokens = spent / DENSE.step(others + 1) * (others + 1)
        # The others write one token each in that time, so the row has to write the rest.
        assert priced.verify(draft) == pytest.approx(plain_tokens - others)


def test_where_forwards_are_level_sharing_makes_a_round_nearly_as_cheap_as_alone():
    assert costs_beside(GPU, 3, shares=True).verify(7) < 2
    assert costs_beside(GPU, 3, shares=False).verify(7) > 4


@pytest.mark.parametrize(
    ("costs", "drafts", "plain", "pays"),
    [
        (GPU, [7], 7, True),
        (GPU, [1, 7], 0, True),
        (DENSE, [7, 7], 0, True),
        (DENSE, [7], 1, True),
        (DENSE, [7], 7, False),
        (DENSE, [1], 3, True),
        (LINEAR, [7], 1, False),
    ],
)
def test_a_forward_is_shared_where_it_is_cheaper_than_each_on_its_own(costs, drafts, plain, pays):
    assert share_pays(drafts, plain, costs, rows=len(drafts) + plain) is pays


def test_inactive_rows_are_paid_for_too():
    assert share_pays([7, 7], 0, DENSE, rows=2)
    assert not share_pays([7, 7], 0, DENSE, rows=6)
    assert share_pays([7, 7], 0, GPU, rows=64)
