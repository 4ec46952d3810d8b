"""Request bodies before they are typed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidParams
from mlxcel_cli.serve.bodies import parse_body
from mlxcel_cli.serve.generation_fields import ALIASES
from mlxcel_cli.serve.openai.schema import (
    INERT,
    OPENAI_FIELDS,
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
)

BASE = {"messages": [{"role": "user", "content": "x"}]}


def parsed(**fields):
    return parse_body(json.dumps(BASE | fields).encode(), ChatRequest, OPENAI_FIELDS)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_field_that_is_not_supported_is_taken_at_its_inert_values_only(name):
    for inert in (*UNSUPPORTED[name], None):
        parsed(**{name: inert})
    with pytest.raises(InvalidParams) as caught:
        parsed(**{name: {"ask": "for something"}})
    assert (caught.value.field, caught.value.problem) == (name, "is not supported yet")


@pytest.mark.parametrize("name", sorted(INERT))
def test_an_inert_field_is_taken_whatever_it_holds(name):
    assert parsed(**{name: ["anything"]}) == parsed()


def test_no_field_is_in_two_classes():
    known = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    classes = [known, set(INERT), set(UNSUPPORTED), set(ALIASES)]
    assert sum(map(len, classes)) == len(set.union(*classes))


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_its_field(alias, name):
    assert getattr(parsed(**{alias: 7}), name) == 7
    assert getattr(parsed(**{alias: 7, name: 7}), name) == 7
    with pytest.raises(InvalidParams):
        parsed(**{alias: 7, name: 8})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*ChatRequest.__struct_fields__, *INERT, *UNSUPPORTED, *ALIASES, "strange"])


def verdict(raw, shape):
    """The request, or the refusal."""
    try:
        return parse_body(raw, shape, OPENAI_FIELDS)
    except InvalidParams as error:
        return error


@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_any_json_object_is_a_request_or_a_named_refusal(body):
    found = verdict(json.dumps(body).encode(), ChatRequest)
    assert isinstance(found, ChatRequest) or (found.field and found.problem)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_named_refusal(raw):
    found = verdict(raw, CompletionRequest)
    assert isinstance(found, CompletionRequest) or found.field
