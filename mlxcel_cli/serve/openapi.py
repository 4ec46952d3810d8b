"""The API as an OpenAPI document, made from the routes and their typed bodies."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from mlxcel_cli.serve.anthropic.schema import ANTHROPIC_FIELDS
from mlxcel_cli.serve.api import Endpoint
from mlxcel_cli.serve.bodies import FieldRules
from mlxcel_cli.serve.llamacpp.schema import LLAMACPP_FIELDS
from mlxcel_cli.serve.openai.schema import OPENAI_FIELDS

_RULES = {
    "ChatRequest": OPENAI_FIELDS,
    "CompletionRequest": OPENAI_FIELDS,
    "NativeRequest": LLAMACPP_FIELDS,
    "InfillRequest": LLAMACPP_FIELDS,
    "MessagesRequest": ANTHROPIC_FIELDS,
    "CountTokensRequest": ANTHROPIC_FIELDS,
}
_ERRORS = {
    400: "The request is wrong; the message names the field.",
    401: "The key is missing or wrong.",
    404: "No such model or path.",
    405: "The path takes another method.",
    408: "The request did not come in time.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    500: "The request failed.",
    503: "Loading, full, or shutting down; Retry-After says when to ask again.",
}
_PRIORITY = {
    "name": "X-Priority", "in": "header", "required": False,
    "schema": {"enum": ["high", "normal", "low"]},
}  # fmt: skip
_COMPONENTS = "#/components/schemas/{name}"


def openapi(version: str, routes: Sequence[Endpoint]) -> dict[str, Any]:
    """The document."""
    types = dict.fromkeys(one for route in routes for one in _types(route))
    _, components = msgspec.json.schema_components(types, ref_template=_COMPONENTS)
    for name, rules in _RULES.items():
        _add_tolerated(components[name], rules)
    paths: dict[str, Any] = {}
    for route in routes:
        methods = ("get", "post") if route.method == "*" else (route.method.lower(),)
        paths.setdefault(route.template, {}).update(dict.fromkeys(methods, _operation(route)))
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlxcel", "version": version},
        "paths": paths,
        "components": {
            "schemas": dict(components),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _types(route: Endpoint) -> list[Any]:
    found = (route.body, route.response, route.event, route.api.error_type)
    return [one for one in found if one is not None]


def _operation(route: Endpoint) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", route.template)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query
    ]
    operation: dict[str, Any] = {"summary": route.summary}
    if route.event is not None:
        parameters.append(_PRIORITY)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = _schema(route.body)
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    operation["responses"] = _responses(route)
    if route.is_public:
        operation["security"] = [{}]
    return operation


def _responses(route: Endpoint) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if not route.is_disabled:
        content = {route.content_type: {"schema": _schema(route.response)}}
        if route.event is not None:
            content["text/event-stream"] = {"schema": _schema(route.event)}
        responses["200"] = {"description": route.summary, "content": content}
    body = {"application/json": {"schema": _schema(route.api.error_type)}}
    errors = _ERRORS | dict(route.api.errors) | dict(route.errors)
    for status, text in errors.items():
        responses[str(status)] = {"description": text, "content": body}
    return responses


def _schema(type_: Any) -> dict[str, Any]:
    """A type's schema: a reference, for a struct."""
    if type_ is None:
        return {}
    (schema,), _ = msgspec.json.schema_components([type_], ref_template=_COMPONENTS)
    return schema


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
