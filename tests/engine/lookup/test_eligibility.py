import itertools
from dataclasses import fields

import pytest

from engine.lookup.eligibility import Refusal, RowFacts, refusal

REASONS = [
    ({"is_structured": True}, Refusal.STRUCTURED_OUTPUT),
    ({"has_feedback": True}, Refusal.SAMPLER_FEEDBACK),
    ({"is_trimmable": False}, Refusal.NOT_TRIMMABLE),
]


def test_an_ordinary_row_is_eligible():
    assert refusal(RowFacts()) is None


@pytest.mark.parametrize(("facts", "reason"), REASONS)
def test_each_fact_refuses_by_name(facts, reason):
    assert refusal(RowFacts(**facts)) is reason


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(REASONS, 2)), ids=str)
def test_the_earlier_of_two_reasons_is_named(first, second):
    assert refusal(RowFacts(**first[0], **second[0])) is first[1]


def test_every_fact_can_refuse():
    asked = {name for facts, _ in REASONS for name in facts}
    assert asked == {field.name for field in fields(RowFacts)}


@pytest.mark.parametrize("reason", list(Refusal))
def test_every_reason_has_a_sentence(reason):
    assert reason.sentence
