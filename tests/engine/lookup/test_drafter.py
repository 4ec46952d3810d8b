from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import DrafterOutOfStep
from engine.lookup.auto_governor import AutoGovernor
from engine.lookup.drafter import PromptLookup
from engine.lookup.governor import FixedGovernor, GatedGovernor, GradedGovernor
from engine.lookup.reference import ReferenceText
from engine.lookup.widths import WidthCosts
from engine.params import SpeculationParams

PARAMS = SpeculationParams()
DENSE = WidthCosts((1.0, 1.40, 1.46, 1.53, 1.61, 1.69, 1.77, 1.84))
LINEAR = WidthCosts(tuple(float(width) for width in range(1, 9)))


def started(context: Sequence[int], governor=None, *, references=()) -> PromptLookup:
    drafter = PromptLookup(PARAMS, governor or FixedGovernor(7), references=references)
    drafter.start(context[:-1], context[-1])
    return drafter


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ((1, 2, 3, 9, 1, 2), (3, 9, 1, 2)),
        ((5, 5, 5), (5,)),
        ((1, 2, 3, 4, 7, 2, 3), (4, 7, 2, 3)),
        ((1, 2, 8, 1, 2, 9, 1, 2), (9, 1, 2)),
        ((1, 2), ()),
    ],
)
def test_an_ask_proposes_the_worked_examples(context, expected):
    assert started(context).propose(context[-1], 7) == expected


def test_a_proposal_is_cut_to_the_block_size():
    assert started((1, 2, 3, 9, 1, 2)).propose(2, 3) == (3, 9, 1)


def test_a_proposal_is_cut_to_the_governors_budget():
    assert started((1, 2, 3, 9, 1, 2), GatedGovernor(7)).propose(2, 7) == (3, 9)


def test_no_room_is_a_paused_round():
    drafter = started((1, 2, 3, 9, 1, 2))
    assert drafter.propose(2, 0) == ()
    assert drafter.stats.paused_rounds == 1


@pytest.mark.parametrize("context", [(1, 2, 3), ()])
def test_an_ask_from_another_token_than_the_last_is_out_of_step(context):
    drafter = PromptLookup(PARAMS, FixedGovernor(7))
    if context:
        drafter.start(context[:-1], context[-1])
    with pytest.raises(DrafterOutOfStep):
        drafter.propose(2, 7)


def test_catching_up_adds_exactly_what_is_missing():
    drafter = started((1, 2, 3))
    drafter.catch_up((3, 4, 5))
    assert drafter.observed_tokens == 3
    drafter.catch_up((3, 4, 5))
    assert drafter.observed_tokens == 3
    assert drafter.propose(5, 7) == ()


def test_a_drafter_ahead_of_its_row_says_so():
    drafter = started((1, 2, 3))
    drafter.observe((4, 5))
    with pytest.raises(DrafterOutOfStep, match="knows 3 tokens of an answer of 2"):
        drafter.catch_up((3, 4))


def test_counts_of_drafted_empty_and_paused_rounds():
    drafter = started((1, 2, 3, 9, 1, 2), GradedGovernor.fresh(7))
    draft = drafter.propose(2, 7)
    drafter.accept(draft, 1, (3, 8))
    assert drafter.propose(8, 7) == ()
    drafter.observe((6,))
    drafter.propose(6, 0)
    stats = drafter.stats
    assert (stats.rounds, stats.drafted_rounds, stats.paused_rounds) == (3, 1, 1)
    assert (stats.proposed, stats.accepted, stats.acceptance_rate) == (4, 1, 0.25)


def test_a_retract_undoes_the_counts_of_its_ask():
    drafter = started((1, 2, 3, 9, 1, 2))
    before = drafter.stats
    drafter.discard(drafter.propose(2, 7))
    assert drafter.stats == before
    drafter.discard(drafter.propose(2, 0))
    assert drafter.stats == before


def test_a_retract_undoes_neither_the_rest_nor_the_streak():
    drafter = started((1, 2), GradedGovernor(7, accepted_ema=1.0, resting=3))
    for _ in range(3):
        drafter.discard(drafter.propose(2, 7))
    governor = drafter.governor
    assert isinstance(governor, GradedGovernor)
    assert governor.resting == 0
    assert drafter.pipelines_plain_rounds()
    assert drafter.stats.rounds == 0


def test_accepting_an_empty_draft_teaches_nothing():
    drafter = started((1, 2), GradedGovernor.fresh(7))
    drafter.accept((), 0, (3,))
    assert drafter.governor == GradedGovernor.fresh(7)
    assert drafter.observed_tokens == 2


def test_plain_rounds_are_pipelined_after_three_empty_asks_in_a_row():
    drafter = started((1, 2))
    seen = []
    for token in (2, 3, 4):
        drafter.propose(token, 7)
        seen.append(drafter.pipelines_plain_rounds())
        drafter.observe((token + 1,))
    assert seen == [False, False, True]


def test_a_proposal_ends_the_pipelining():
    drafter = started((1, 2, 3))
    for token in (3, 4, 5):
        drafter.propose(token, 7)
        drafter.observe((token + 1,))
    drafter.observe((1, 2))
    assert drafter.pipelines_plain_rounds()
    assert drafter.propose(2, 7)
    assert not drafter.pipelines_plain_rounds()


def test_a_paused_gated_governor_pipelines_at_once():
    drafter = started((1, 2, 3, 9, 1, 2), GatedGovernor(7))
    drafter.accept(drafter.propose(2, 7), 0, (7,))
    assert drafter.pipelines_plain_rounds()


def test_starting_anew_forgets_everything():
    drafter = started((1, 2, 3, 9, 1, 2), GatedGovernor(7))
    drafter.accept(drafter.propose(2, 7), 0, (7,))
    drafter.start((1, 2, 3, 9, 1), 2)
    assert drafter.stats.rounds == 0
    assert drafter.observed_tokens == 1
    assert drafter.propose(2, 7) == (3, 9)


class TestShadowProbesOfAPausedGatedGovernor:
    """The probe looked up at an ask claims the tokens that come after that ask's context."""

    CONTEXT = (1, 2, 3, 4, 5, 9, 1, 2)

    def paused(self, context: Sequence[int] = CONTEXT) -> PromptLookup:
        drafter = started(context, GatedGovernor(7, is_drafting=False, on_probation=False))
        assert drafter.propose(context[-1], 7) == ()
        return drafter

    def test_two_right_tokens_resume_and_the_same_ask_proposes(self):
        drafter = self.paused()
        drafter.observe((3, 4))
        assert drafter.propose(4, 7) == (5, 9)
        assert drafter.governor == GatedGovernor(7)
        assert drafter.stats.shadow_confirmations == 1

    def test_one_right_token_decides_nothing(self):
        drafter = self.paused()
        drafter.observe((3,))
        assert drafter.propose(3, 7) == ()
        drafter.observe((4,))
        assert drafter.propose(4, 7) == (5, 9)

    @pytest.mark.parametrize("written", [(8,), (3, 8), (2, 3), (4, 5)], ids=str)
    def test_a_wrong_token_drops_the_probe(self, written):
        drafter = self.paused()
        drafter.observe(written)
        assert drafter.propose(written[-1], 7) == ()
        assert drafter.governor.is_paused
        assert drafter.stats.shadow_confirmations == 0

    def test_a_dropped_probe_makes_room_for_the_next(self):
        drafter = self.paused()
        drafter.observe((8, 1, 2))
        assert drafter.propose(2, 7) == ()  # drops the first probe, claims 8 1 from the latest 1 2
        drafter.observe((8, 1))
        assert drafter.propose(1, 7) == (2, 8)
        assert drafter.stats.shadow_confirmations == 1

    def test_the_first_wrong_token_drops_a_probe_before_its_second_is_written(self):
        drafter = self.paused((1, 2, 3, 4, 5, 2, 6, 7, 8, 1, 2))
        drafter.observe((6,))
        assert drafter.propose(6, 7) == ()  # drops 3 4, claims 7 8
        drafter.observe((7, 8))
        assert drafter.propose(8, 7) == (1, 2)

    def test_a_proposal_of_one_token_is_no_probe(self):
        drafter = self.paused((5, 5, 5))
        drafter.observe((5, 5))
        assert drafter.propose(5, 7) == ()
        assert drafter.stats.shadow_confirmations == 0

    def test_a_retract_leaves_the_probe(self):
        drafter = started(self.CONTEXT, GatedGovernor(7, is_drafting=False))
        drafter.discard(drafter.propose(2, 7))
        drafter.observe((3, 4))
        assert drafter.propose(4, 7) == (5, 9)


class TestAuto:
    """Proposals that nobody verifies teach the governor for free."""

    def test_a_short_agreement_is_declined_as_a_paused_round(self):
        drafter = started((1, 2, 3, 9, 1, 2), AutoGovernor.fresh(7, DENSE))
        assert drafter.propose(2, 7) == ()
        assert drafter.stats.paused_rounds == 1

    def test_a_declined_proposal_that_comes_true_is_a_confirmation(self):
        drafter = started((1, 2, 3, 9, 1, 2), AutoGovernor.fresh(7, DENSE))
        drafter.propose(2, 7)
        drafter.observe((3,))
        drafter.propose(3, 7)
        assert drafter.stats.shadow_confirmations == 1

    def test_a_retracted_proposal_is_settled_by_the_step_in_flight(self):
        context = (*range(30), *range(25))
        drafter = started(context, AutoGovernor.fresh(7, DENSE))
        before = drafter.governor
        drafter.discard(drafter.propose(24, 7))
        drafter.observe((99,))
        drafter.propose(99, 7)
        assert drafter.governor != before
        assert drafter.stats.shadow_confirmations == 0

    def test_a_verified_draft_is_not_settled_twice(self):
        drafter = started((*range(30), *range(25)), AutoGovernor.fresh(7, DENSE))
        draft = drafter.propose(24, 7)
        assert len(draft) == 7
        drafter.accept(draft, 5, (25, 26, 27, 28, 29, 77))
        learnt = drafter.governor
        drafter.propose(77, 7)
        assert drafter.governor == learnt
        assert drafter.stats.shadow_confirmations == 0

    def test_a_draft_that_pays_may_not_pay_for_leaving_a_pipeline(self):
        costs = WidthCosts((1.15, 1.25))
        asked = []
        for empty_asks in (2, 3):
            drafter = started((1, 2, 3, 9, 0), AutoGovernor.fresh(1, costs))
            for _ in range(empty_asks):
                drafter.propose(0, 1)
            drafter.observe((1, 2, 3))
            asked.append(drafter.propose(3, 1))
        assert asked == [(9,), ()]

    def test_where_no_width_pays_nothing_is_looked_up_and_rounds_are_pipelined(self):
        drafter = started((*range(30), *range(25)), AutoGovernor.fresh(7, LINEAR))
        assert drafter.pipelines_plain_rounds()
        assert drafter.propose(24, 7) == ()
        assert not drafter.prepare(1)  # the index was never built


class TestReferenceTexts:
    def reference(self, name: str, *tokens: int) -> ReferenceText:
        return ReferenceText.from_tokens(name, tokens, PARAMS)

    def test_a_draft_may_come_from_a_text_the_model_never_sees(self):
        drafter = started((1, 2), references=[self.reference("a", 0, 1, 2, 7, 8)])
        assert drafter.propose(2, 7) == (7, 8)

    def test_the_own_context_comes_first_at_equal_length(self):
        drafter = started((1, 2, 5, 1, 2), references=[self.reference("a", 1, 2, 7, 8)])
        assert drafter.propose(2, 7) == (5, 1, 2)

    def test_a_longer_match_in_a_reference_wins(self):
        drafter = started((1, 2, 5, 6, 1, 2), references=[self.reference("a", 6, 1, 2, 7)])
        assert drafter.propose(2, 7) == (7,)

    def test_of_two_references_the_first_one_wins(self):
        references = [self.reference("a", 1, 2, 7), self.reference("b", 1, 2, 8)]
        assert started((1, 2), references=references).propose(2, 7) == (7,)

    def test_matches_do_not_straddle_two_references(self):
        references = [self.reference("a", 5, 1), self.reference("b", 2, 8)]
        assert started((1, 2), references=references).propose(2, 7) == ()

    def test_sequences_share_a_reference_without_changing_it(self):
        reference = self.reference("a", 0, 1, 2, 7, 8)
        first = started((1, 2), references=[reference])
        second = started((9, 1, 2), references=[reference])
        first.observe((5, 6, 7))
        assert second.propose(2, 7) == (7, 8)
        assert reference.index.tokens.tolist() == [0, 1, 2, 7, 8]


def test_a_long_index_is_built_in_slices_and_then_answers_alike():
    context = (*range(5000), 10, 11, 12)
    sliced, lazy = started(context), started(context)
    slices = 1
    while not sliced.prepare(1000):
        slices += 1
    assert slices == 6
    assert sliced.propose(12, 7) == lazy.propose(12, 7) == tuple(range(13, 20))


@given(
    prompt=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    answer=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    policy=st.sampled_from(
        [
            FixedGovernor(4),
            GradedGovernor.fresh(4),
            GatedGovernor(4),
            AutoGovernor.fresh(4, DENSE),
        ]
    ),
)
def test_every_policy_writes_the_answer_and_its_counts_add_up(prompt, answer, policy):
    drafter = PromptLookup(SpeculationParams(max_draft=4), policy)
    drafter.start(prompt, answer[0])
    written, rounds, drafted = 1, 0, 0
    while written < len(answer):
        draft = drafter.propose(answer[written - 1], min(4, len(answer) - written - 1))
        truth = answer[written:]
        accepted = next((i for i, token in enumerate(draft) if token != truth[i]), len(draft))
        drafter.accept(draft, accepted, truth[: accepted + 1])
        written += accepted + 1
        rounds += 1
        drafted += bool(draft)
        assert drafter.observed_tokens == written
    assert (drafter.stats.rounds, drafter.stats.drafted_rounds) == (rounds, drafted)
    assert drafter.stats.accepted == written - 1 - rounds
