"""The API as an OpenAPI document, made from the typed models."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mlxcel_cli.serve.schema.fields import INERT, UNSUPPORTED
from mlxcel_cli.serve.schema.requests import ALIASES, ChatRequest, CompletionRequest
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
)
_ERRORS = {
    400: "The request is wrong; the message names the field.",
    401: "The key is missing or wrong.",
    404: "No such model or path.",
    405: "The path takes another method.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    500: "The answer failed.",
    503: "Loading, full, or shutting down; Retry-After says when to ask again.",
}


def openapi(version: str) -> dict[str, Any]:
    """The document."""
    _, components = msgspec.json.schema_components(
        _MODELS, ref_template="#/components/schemas/{name}"
    )
    for name in ("ChatRequest", "CompletionRequest"):
        _add_tolerated(components[name])
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
    chat = _post("Answer a conversation.", "ChatRequest", "ChatCompletion", "ChatChunk")
    texts = _post("Go on from texts.", "CompletionRequest", "Completion", "Completion")
    health = _get("Whether requests are taken.", "HealthBody") | {"security": [{}]}
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {"post": chat},
        "/v1/completions": {"post": texts},
        "/v1/models": {"get": _get("The served model.", "ModelList")},
        "/v1/models/{model}": {
            "get": _get("The model of a name.", "ModelEntry") | {"parameters": [name]}
        },
        "/health": {"get": health},
        "/v1/health": {"get": health},
        "/": {"get": _get("What this server is.")},
        "/v1/settings": {"get": _get("Settings in force.")},
        "/metrics": {"get": _get("Figures for Prometheus.", kind="text/plain")},
        "/openapi.json": {"get": _get("This document.")},
    }


def _post(summary: str, body: str, response: str, event: str) -> dict[str, Any]:
    priority = {
        "name": "X-Priority", "in": "header", "required": False,
        "schema": {"enum": ["high", "normal", "low"]},
    }  # fmt: skip
    content = {
        "application/json": {"schema": _ref(response)},
        "text/event-stream": {"schema": _ref(event)},
    }
    return {
        "summary": summary,
        "parameters": [priority],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(body)}},
        },
        "responses": {"200": {"description": "The answer.", "content": content}, **_errors()},
    }


def _get(summary: str, response: str | None = None, kind: str = "application/json") -> Any:
    schema = {} if response is None else _ref(response)
    good = {"description": summary, "content": {kind: {"schema": schema}}}
    return {"summary": summary, "responses": {"200": good, **_errors()}}


def _errors() -> dict[str, Any]:
    body = {"application/json": {"schema": _ref("ErrorBody")}}
    return {str(status): {"description": text, "content": body} for status, text in _ERRORS.items()}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _add_tolerated(schema: Any) -> None:
    """Aliases, inert fields, and fields that may only ask for nothing."""
    properties: dict[str, Any] = schema["properties"]
    for alias, name in ALIASES.items():
        properties[alias] = {"$ref": f"#/components/schemas/{schema['title']}/properties/{name}"}
    for name in sorted(INERT):
        properties[name] = {"description": "Accepted; changes nothing."}
    for name, inert in _sorted(UNSUPPORTED):
        properties[name] = {"description": "Not supported yet.", "enum": [*inert, None]}


def _sorted(table: Mapping[str, tuple[object, ...]]) -> list[tuple[str, tuple[object, ...]]]:
    return sorted(table.items())
