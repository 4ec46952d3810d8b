import pytest

from engine.lookup.auto_governor import AutoGovernor, CopyChances, governor_for
from engine.lookup.governor import FixedGovernor, GatedGovernor, GradedGovernor, Offer
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, SpeculationParams

DENSE = WidthCosts((1.0, 1.40, 1.46, 1.53, 1.61, 1.69, 1.77, 1.84))
QUANTIZED = WidthCosts((1.0, 1.95, 2.90, 3.85, 4.80, 5.75, 6.75, 7.7))
GPU = WidthCosts((1.15, 1.25, 1.27, 1.29, 1.35, 1.38, 1.42, 1.45))


def draft_tokens(governor, agreement, *, proposed=7, **rest):
    return governor.draft_tokens(Offer(agreement, proposed, **rest))


def test_a_long_agreement_is_drafted_in_full_from_the_start():
    assert draft_tokens(AutoGovernor.fresh(7, DENSE), agreement=24) == 7


def test_a_two_token_agreement_must_prove_itself_first():
    governor = AutoGovernor.fresh(7, DENSE)
    assert draft_tokens(governor, agreement=2) == 0
    for _ in range(12):
        governor = governor.after_probe(agreement=2, confirmed=True)
    assert draft_tokens(governor, agreement=2) > 0


def test_wrong_drafts_end_drafting_at_that_agreement():
    governor = AutoGovernor.fresh(7, DENSE)
    assert draft_tokens(governor, agreement=4) > 0
    for _ in range(6):
        governor = governor.after_verify(agreement=4, drafted=5, accepted=0)
    assert draft_tokens(governor, agreement=4) == 0
    assert draft_tokens(governor, agreement=24) == 7


def test_drafting_comes_back_when_the_text_copies_again_without_a_single_verify():
    governor = AutoGovernor.fresh(7, DENSE)
    for _ in range(50):
        governor = governor.after_probe(agreement=3, confirmed=False)
    assert draft_tokens(governor, agreement=3) == 0
    for _ in range(50):
        governor = governor.after_probe(agreement=3, confirmed=True)
    assert draft_tokens(governor, agreement=3) > 0


def test_where_no_width_pays_nothing_is_asked_or_probed():
    governor = AutoGovernor.fresh(7, QUANTIZED)
    assert governor.ask() == (0, governor)
    assert governor.is_paused
    assert governor.probe_tokens == 0


def test_where_widths_pay_every_ask_may_draft_and_each_proposal_teaches():
    governor = AutoGovernor.fresh(7, DENSE)
    assert governor.ask() == (7, governor)
    assert not governor.is_paused
    assert governor.probe_tokens == 1


def test_a_draft_that_ends_a_pipeline_must_pay_for_its_refill():
    governor = AutoGovernor.fresh(7, GPU)
    assert draft_tokens(governor, agreement=3, proposed=1, is_pipelined=False) == 1
    assert draft_tokens(governor, agreement=3, proposed=1, is_pipelined=True) == 0
    assert draft_tokens(governor, agreement=24, is_pipelined=True) == 7


def test_later_tokens_of_a_draft_count_for_longer_agreements():
    before = CopyChances.prior()
    after = before.after(agreement=3, right=2, wrong=True)
    rose = [new > old for new, old in zip(after.of(3, 2), before.of(3, 2), strict=True)]
    assert rose == [True, False]  # 3 was right; 4 and 5 share a band: right, then wrong
    assert after.of(4, 1)[0] < before.of(4, 1)[0]
    assert after.of(2, 1) == before.of(2, 1)
    assert after.of(6, 1) == before.of(6, 1)


def test_an_accepted_draft_holds_no_wrong_token():
    governor = AutoGovernor.fresh(7, DENSE)
    after = governor.after_verify(agreement=24, drafted=7, accepted=7)
    assert after.chances.of(24, 1)[0] > governor.chances.of(24, 1)[0]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (LookupPolicy.GRADED, GradedGovernor.fresh(5)),
        (LookupPolicy.GATED, GatedGovernor(5)),
        (LookupPolicy.FIXED, FixedGovernor(5)),
        (LookupPolicy.AUTO, AutoGovernor.fresh(5, DENSE)),
    ],
)
def test_a_policy_names_its_governor(policy, expected):
    params = SpeculationParams(max_draft=5, policy=policy)
    assert governor_for(params, unmeasured=LookupPolicy.GATED, costs=DENSE) == expected


@pytest.mark.parametrize(
    ("unmeasured", "expected"),
    [
        (LookupPolicy.GRADED, GradedGovernor.fresh(7)),
        (LookupPolicy.GATED, GatedGovernor(7)),
        (LookupPolicy.AUTO, GradedGovernor.fresh(7)),
    ],
)
def test_auto_is_the_devices_plain_policy_until_costs_are_measured(unmeasured, expected):
    assert governor_for(SpeculationParams(), unmeasured=unmeasured, costs=None) == expected


def test_alongside_other_rows_a_draft_must_bring_what_they_would_write_meanwhile():
    alone = AutoGovernor.fresh(7, DENSE)
    assert draft_tokens(alone, agreement=4) > 0
    assert draft_tokens(alone, agreement=4, others=3) == 0
    assert draft_tokens(AutoGovernor.fresh(7, DENSE, shares=True), agreement=24, others=1) > 0


def test_on_a_device_that_shares_forwards_for_nothing_others_do_not_matter():
    costs = WidthCosts((1.05, *[1.08] * 7))
    shared = AutoGovernor.fresh(7, costs, shares=True)
    assert draft_tokens(shared, agreement=9, others=7) == draft_tokens(shared, agreement=9) == 7
