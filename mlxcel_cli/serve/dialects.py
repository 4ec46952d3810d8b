"""Which API's words a path's errors are told in: OpenAI's, llama.cpp's or Anthropic's."""

from http import HTTPStatus
from typing import Any

from mlxcel_cli.serve.errors import ApiError

LLAMA_PATHS = frozenset({
    "/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template",
    "/props", "/slots", "/tools", "/cors-proxy", "/health", "/v1/health",
})  # fmt: skip
ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
OVERLOADED = 529
"""Anthropic's status for a server that has to send clients away."""

_ANTHROPIC_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def error_body(path: str, error: ApiError, request_id: str) -> tuple[int, dict[str, Any]]:
    """Status and body of an error on ``path``."""
    if path in LLAMA_PATHS:
        return error.status, llama_body(error)
    if path in ANTHROPIC_PATHS:
        unavailable = error.status is HTTPStatus.SERVICE_UNAVAILABLE
        status = OVERLOADED if unavailable else error.status
        return status, anthropic_body(error, request_id)
    return error.status, error.body


def llama_body(error: ApiError) -> dict[str, Any]:
    """llama.cpp's error object: a numeric code, and no field of its own for the parameter."""
    return {"error": {"code": int(error.status), "message": error.message, "type": error.kind}}


def anthropic_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """Anthropic's error object, of a response or of a stream's event."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(error.status, default)
    return {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": request_id,
    }
