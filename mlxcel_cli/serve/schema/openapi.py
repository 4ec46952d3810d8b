"""The API as an OpenAPI document, made from the typed models."""

from typing import Any, get_args

import msgspec

from mlxcel_cli.serve.dialects import OVERLOADED
from mlxcel_cli.serve.schema.anthropic import (
    MESSAGES,
    CountTokensRequest,
    MessageBody,
    MessageEvent,
    MessagesErrorBody,
    MessagesRequest,
)
from mlxcel_cli.serve.schema.fields import OPENAI, FieldRules
from mlxcel_cli.serve.schema.native import (
    NATIVE,
    DetokenizeBody,
    DetokenizeRequest,
    InfillRequest,
    InputTokensBody,
    NativeCompletion,
    NativeErrorBody,
    NativeFrame,
    NativeRequest,
    TemplateBody,
    TokenizeBody,
    TokenizeRequest,
)
from mlxcel_cli.serve.schema.requests import ChatRequest, CompletionRequest
from mlxcel_cli.serve.schema.responses import (
    ChatChunk,
    ChatCompletion,
    Completion,
    ErrorBody,
    HealthBody,
    ModelEntry,
    ModelList,
)

_MODELS = (
    ChatRequest,
    CompletionRequest,
    ChatCompletion,
    ChatChunk,
    Completion,
    ErrorBody,
    HealthBody,
    ModelEntry,
    ModelList,
    NativeRequest,
    InfillRequest,
    NativeCompletion,
    NativeFrame,
    NativeErrorBody,
    TokenizeRequest,
    TokenizeBody,
    DetokenizeRequest,
    DetokenizeBody,
    TemplateBody,
    InputTokensBody,
    MessagesRequest,
    CountTokensRequest,
    MessageBody,
    MessageEvent,
    MessagesErrorBody,
)
_RULES = {
    "ChatRequest": OPENAI,
    "CompletionRequest": OPENAI,
    "NativeRequest": NATIVE,
    "InfillRequest": NATIVE,
    "MessagesRequest": MESSAGES,
    "CountTokensRequest": MESSAGES,
}
_ERRORS = {
    400: "The request is wrong; the message names the field.",
    401: "The key is missing or wrong.",
    404: "No such model or path.",
    405: "The path takes another method.",
    408: "The request did not come in time.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    500: "The answer failed.",
    503: "Loading, full, or shutting down; Retry-After says when to ask again.",
}
_MORE_ERRORS = {
    "NativeErrorBody": {
        403: "This feature is disabled.",
        501: "The model or the server's options do not support it.",
    },
    "MessagesErrorBody": {OVERLOADED: "Loading, full, or shutting down."},
}


def openapi(version: str) -> dict[str, Any]:
    """The document."""
    _, components = msgspec.json.schema_components(
        _MODELS, ref_template="#/components/schemas/{name}"
    )
    for name, rules in _RULES.items():
        _add_tolerated(components[name], rules)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlxcel", "version": version},
        "paths": _paths(),
        "components": {
            "schemas": dict(components),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _paths() -> dict[str, Any]:
    health = _get("Whether requests are taken.", "HealthBody", error="NativeErrorBody")
    health["security"] = [{}]
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    models = {"get": _get("The served model.", "ModelList")}
    return {
        "/v1/models": models,
        "/models": models,
        "/v1/models/{model}": {
            "get": _get("The model of a name.", "ModelEntry") | {"parameters": [name]}
        },
        "/health": {"get": health},
        "/v1/health": {"get": health},
        "/": {"get": _get("What this server is.")},
        "/v1/settings": {"get": _get("Settings in force."), "post": _change_settings()},
        "/v1/cache/stats": {"get": _get("What the prompt cache holds.")},
        "/v1/cache/reset": {"post": _get("Empties the prompt cache.")},
        "/metrics": {"get": _get("Figures for Prometheus.", kind="text/plain")},
        "/openapi.json": {"get": _get("This document.")},
        **_openai_paths(),
        **_llama_paths(),
        **_anthropic_paths(),
    }


def _change_settings() -> dict[str, Any]:
    """It takes any changeable setting, and a key."""
    operation: dict[str, Any] = _get("Changes settings; only where a key guards the server.")
    object_schema = {"type": "object", "additionalProperties": True}
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": object_schema}},
    }
    operation["responses"]["403"] = operation["responses"]["400"] | {
        "description": "No key guards this server, so anyone might change it."
    }
    return operation


def _disabled() -> dict[str, Any]:
    """It never answers anything else than that."""
    operation: dict[str, Any] = _get("Disabled.", error="NativeErrorBody")
    del operation["responses"]["200"]
    return operation


def _openai_paths() -> dict[str, Any]:
    chat = _post("Answer a conversation.", "ChatRequest", "ChatCompletion", "ChatChunk")
    texts = _post("Go on from texts.", "CompletionRequest", "Completion", "Completion")
    count = _post("Count a conversation's tokens.", "ChatRequest", "InputTokensBody")
    return {
        "/v1/chat/completions": {"post": chat},
        "/chat/completions": {"post": chat},
        "/v1/completions": {"post": texts},
        "/v1/chat/completions/input_tokens": {"post": count},
    }


def _llama_paths() -> dict[str, Any]:
    error = "NativeErrorBody"
    native = ("NativeCompletion", "NativeFrame", error)
    texts = _post("Go on from a text, in llama.cpp's shape.", "NativeRequest", *native)
    disabled = {method: _disabled() for method in ("get", "post")}
    slots = _get("What each slot does.", error=error)
    asks = {"name": "fail_on_no_slot", "in": "query", "schema": {"type": "string"}}
    return {
        "/completion": {"post": texts},
        "/completions": {"post": texts},
        "/infill": {"post": _post("Fill in between two texts.", "InfillRequest", *native)},
        "/tokenize": {
            "post": _post("A text's tokens.", "TokenizeRequest", "TokenizeBody", error=error)
        },
        "/detokenize": {
            "post": _post("Tokens' text.", "DetokenizeRequest", "DetokenizeBody", error=error)
        },
        "/apply-template": {
            "post": _post("A conversation's prompt.", "ChatRequest", "TemplateBody", error=error)
        },
        "/props": {
            "get": _get("Properties.", error=error),
            "post": _get("Taken with --props; changes nothing.", error=error),
        },
        "/slots": {"get": slots | {"parameters": [asks]}},
        "/tools": disabled,
        "/cors-proxy": disabled,
    }


def _anthropic_paths() -> dict[str, Any]:
    error = "MessagesErrorBody"
    answer = _post(
        "Answer a conversation, in Anthropic's shape.",
        "MessagesRequest",
        "MessageBody",
        error=error,
    )
    events = {"anyOf": [_ref(event.__name__) for event in get_args(MessageEvent)]}
    answer["responses"]["200"]["content"]["text/event-stream"] = {"schema": events}
    count = _post("Count its tokens.", "CountTokensRequest", "InputTokensBody", error=error)
    return {"/v1/messages": {"post": answer}, "/v1/messages/count_tokens": {"post": count}}


def _post(
    summary: str, body: str, response: str, event: str | None = None, error: str = "ErrorBody"
) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(response)}}
    if event is not None:
        content["text/event-stream"] = {"schema": _ref(event)}
    priority = {
        "name": "X-Priority", "in": "header", "required": False,
        "schema": {"enum": ["high", "normal", "low"]},
    }  # fmt: skip
    return {
        "summary": summary,
        "parameters": [priority],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(body)}},
        },
        "responses": {"200": {"description": "The answer.", "content": content}, **_errors(error)},
    }


def _get(
    summary: str,
    response: str | None = None,
    kind: str = "application/json",
    error: str = "ErrorBody",
) -> Any:
    schema = {} if response is None else _ref(response)
    good = {"description": summary, "content": {kind: {"schema": schema}}}
    return {"summary": summary, "responses": {"200": good, **_errors(error)}}


def _errors(name: str) -> dict[str, Any]:
    body = {"application/json": {"schema": _ref(name)}}
    told = _ERRORS | _MORE_ERRORS.get(name, {})
    return {str(status): {"description": text, "content": body} for status, text in told.items()}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _add_tolerated(schema: Any, rules: FieldRules) -> None:
    """Aliases, inert fields, and fields that may only ask for nothing."""
    properties: dict[str, Any] = schema["properties"]
    for alias, name in rules.aliases.items():
        if name in properties:
            properties[alias] = {
                "$ref": f"#/components/schemas/{schema['title']}/properties/{name}"
            }
    for name in sorted(rules.inert):
        properties[name] = {"description": "Accepted; changes nothing."}
    for name, inert in sorted(rules.unsupported.items()):
        properties[name] = {"description": "Not supported yet.", "enum": [*inert, None]}
