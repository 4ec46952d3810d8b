"""Requests made from the server's own OpenAPI document, some of them wrong: no 5xx, no hang."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxcel_cli.serve.app import ROUTES
from mlxcel_cli.serve.openapi import openapi

DOCUMENT = openapi("0", ROUTES)
SCHEMAS = DOCUMENT["components"]["schemas"]
ENDPOINTS = {
    "/v1/chat/completions": "ChatRequest",
    "/v1/completions": "CompletionRequest",
    "/completion": "NativeRequest",
    "/tokenize": "TokenizeRequest",
    "/detokenize": "DetokenizeRequest",
    "/v1/messages": "MessagesRequest",
}
ERROR_KEYS = {
    "ErrorBody": {"message", "type", "param", "code"},
    "NativeErrorBody": {"message", "type", "code"},
    "MessagesErrorBody": {"message", "type"},
}
TEXTS = st.text(max_size=12) | st.sampled_from(["<|im_end|>", "é", "🙂", "\0", "a" * 50])
WRONG = st.sampled_from([None, True, -1, 1e308, "x", [], {}, [[]], {"a": [1]}, 2**70])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=3,
)
TAME = {
    "max_tokens": st.integers(0, 6),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "messages": MESSAGES,
    "model": st.just("tiny"),
    "min_tokens": st.integers(0, 3),
}
"""What would make an answer long or a test dull if it were left to chance."""


PLAIN = {
    "integer": st.integers(-2, 300),
    "number": st.floats(-2, 3, allow_nan=False),
    "boolean": st.booleans(),
    "string": TEXTS,
}


def values_of(schema):
    """Values that a schema allows, as far as these schemas go."""
    kind = schema.get("type")
    if "$ref" in schema:
        values = values_of(resolve(schema["$ref"]))
    elif "anyOf" in schema:
        values = st.one_of([values_of(one) for one in schema["anyOf"]])
    elif "enum" in schema:
        values = st.sampled_from(schema["enum"])
    elif kind == "array":
        values = st.lists(values_of(schema.get("items", {})), max_size=3)
    elif kind == "object" and "properties" in schema:
        parts = {name: values_of(one) for name, one in schema["properties"].items()}
        values = st.fixed_dictionaries({}, optional=parts)
    elif kind == "object":
        values = st.dictionaries(TEXTS, values_of(schema.get("additionalProperties") or {}))
    else:
        values = PLAIN.get(kind, st.none())
    return values


def resolve(reference):
    found = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def bodies(name):
    properties = SCHEMAS[name]["properties"]
    fields = {field: TAME.get(field, values_of(one)) for field, one in properties.items()}
    aliases = {"max_completion_tokens", "n_predict"}
    optional = {key: one for key, one in fields.items() if key not in aliases | {"max_tokens"}}
    required = {key: fields[key] for key in SCHEMAS[name].get("required", ())}
    if "max_tokens" in properties:
        required["max_tokens"] = TAME["max_tokens"]
    optional = {key: one for key, one in optional.items() if key not in required}
    right = st.fixed_dictionaries(required, optional={})
    some = st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({one: optional[one] for one in names})
    )
    broken = st.dictionaries(st.sampled_from([*sorted(optional), "strange"]), WRONG, max_size=1)
    return st.builds(lambda a, b, c: a | b | c, right, some, broken)


@pytest.mark.parametrize("path", list(ENDPOINTS))
def test_any_request_gets_a_documented_answer(server, path):
    responses = DOCUMENT["paths"][path]["post"]["responses"]
    documented = {int(status) for status in responses}
    error = responses["400"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    seen = set()

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(bodies(ENDPOINTS[path]))
    def ask(body):
        reply = server.ask("POST", path, body)
        assert reply.status in documented
        assert reply.status < 500, reply.body
        seen.add(reply.status)
        if reply.status != 200:
            assert set(reply.error) == ERROR_KEYS[error]
        elif body.get("stream"):
            assert reply.events if error == "ErrorBody" else reply.body.endswith(b"}\n\n")

    ask()
    assert seen >= {200, 400}
    assert server.ask("GET", "/health").status == 200
