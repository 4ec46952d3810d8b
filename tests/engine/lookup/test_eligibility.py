import itertools
from dataclasses import fields

import pytest

from engine.errors import InvalidParams
from engine.lookup.eligibility import (
    Refusal,
    RequestFacts,
    refusal,
    require_eligible,
    server_refusal,
)

SERVER_ONLY = [
    ({"is_multimodal": True}, Refusal.MULTIMODAL),
    ({"is_structured": True}, Refusal.STRUCTURED_OUTPUT),
    ({"wants_logprobs": True}, Refusal.LOGPROBS),
    ({"has_extended_chain": True}, Refusal.EXTENDED_CHAIN),
]
SHARED = [
    ({"drafts_from_tokens_only": False}, Refusal.DRAFTER_NEEDS_MODEL),
    ({"has_feedback": True}, Refusal.SAMPLER_FEEDBACK),
    ({"has_storage": False}, Refusal.NO_STORAGE),
    ({"is_trimmable": False}, Refusal.NOT_TRIMMABLE),
    ({"is_batchable": False}, Refusal.NOT_BATCHABLE),
    ({"has_model_owned_layout": True}, Refusal.MODEL_OWNED_LAYOUT),
    ({"trims_exactly": False}, Refusal.INEXACT_TRIM),
]


def test_an_ordinary_request_is_eligible_everywhere():
    assert refusal(RequestFacts()) is None
    assert server_refusal(RequestFacts()) is None
    require_eligible(RequestFacts())


@pytest.mark.parametrize(("facts", "reason"), SHARED)
def test_shared_reasons_hold_everywhere(facts, reason):
    assert refusal(RequestFacts(**facts)) is reason
    assert server_refusal(RequestFacts(**facts)) is reason


@pytest.mark.parametrize(("facts", "reason"), SERVER_ONLY)
def test_server_reasons_do_not_bind_the_command_line(facts, reason):
    assert server_refusal(RequestFacts(**facts)) is reason
    assert refusal(RequestFacts(**facts)) is None


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.combinations(SERVER_ONLY + SHARED, 2)), ids=str
)
def test_the_earlier_of_two_reasons_is_named(first, second):
    assert server_refusal(RequestFacts(**first[0], **second[0])) is first[1]


def test_every_fact_can_refuse():
    asked = {name for facts, _ in SERVER_ONLY + SHARED for name in facts}
    assert asked == {field.name for field in fields(RequestFacts)}


def test_the_command_line_gets_an_error_that_names_the_reason():
    with pytest.raises(InvalidParams, match="recurrent state") as caught:
        require_eligible(RequestFacts(is_trimmable=False))
    assert caught.value.field == "prompt_lookup"


@pytest.mark.parametrize("reason", list(Refusal))
def test_every_reason_has_a_sentence(reason):
    assert len(reason.sentence) > 20
