"""JSON of bodies and events, where clients need more than one parser gives."""

import json
import re

import msgspec
import pytest

from engine.errors import InvalidParams
from mlxcel_cli.serve import json_text
from mlxcel_cli.serve.bodies import parse_body
from mlxcel_cli.serve.openai.schema import OPENAI_FIELDS, ChatRequest

BASE = {"messages": [{"role": "user", "content": "a"}]}


def parsed(raw: str) -> ChatRequest:
    body = json.dumps(BASE)[:-1] + f",{raw}}}"
    return parse_body(body.encode(), ChatRequest, OPENAI_FIELDS)


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"])
def test_an_event_is_one_line_for_every_reader(character):
    data = json_text.encode({"text": f"a{character}b"})
    assert data.decode().splitlines() == [data.decode()]
    assert msgspec.json.decode(data) == {"text": f"a{character}b"}


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "n", "seed", "min_tokens", "n_predict"])
@pytest.mark.parametrize("number", ["2.0", "2e0", "0.2e1"])
def test_a_whole_number_may_be_written_as_a_float(name, number):
    field = "max_tokens" if name == "n_predict" else name
    value = getattr(parsed(f'"{name}": {number}'), field)
    assert (value, type(value)) == (2, int)


def test_whole_numbers_of_a_list_too():
    assert parsed('"stop_token_ids": [1.0, 2]').stop_token_ids == [1, 2]


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ('"max_tokens": 6000.5', "max_tokens"),
        ('"max_tokens": 1e400', "max_tokens"),
        ('"n_predict": "5"', "n_predict"),
        ('"max_completion_tokens": "5"', "max_completion_tokens"),
        ('"repeat_penalty": "x"', "repeat_penalty"),
        ('"logit_bias": {"1": 1' + "0" * 400 + "}", "logit_bias"),
        ('"max_tokens": 1, "max_completion_tokens": 2', "max_completion_tokens"),
    ],
)
def test_an_error_names_the_field_that_the_client_wrote(raw, field):
    with pytest.raises(InvalidParams) as refused:
        parsed(raw)
    assert re.split(r"[.\[]", refused.value.field)[0] == field


def test_half_a_surrogate_pair_is_the_replacement_character():
    assert parsed('"user": "a\\ud83d"').user == "a\N{REPLACEMENT CHARACTER}"


def test_a_byte_order_mark_changes_nothing():
    body = b"\xef\xbb\xbf" + json.dumps(BASE).encode()
    assert parse_body(body, ChatRequest, OPENAI_FIELDS).messages == BASE["messages"]


@pytest.mark.parametrize("raw", [b"NaN", b"{", b'{"a":Infinity}', b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(raw):
    with pytest.raises(InvalidParams, match="body"):
        json_text.decode(raw)
