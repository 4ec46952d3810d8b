"""Reads request bodies: their length, type and encoding are checked before they are parsed."""

import asyncio
from http import HTTPStatus

from aiohttp import web

from mlxcel_cli.serve.errors import ApiError

BODY_IDLE_S = 30.0
"""Seconds that a client may pause while it sends a body."""
ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
"""What a body may be packed as."""


async def read_body(request: web.Request) -> bytes:
    """The body's bytes.

    Raises:
        ApiError: it is too long, or not JSON by its header.
    """
    kind = request.content_type
    if "Content-Type" in request.headers and not (kind.endswith(("/json", "+json"))):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body must be JSON: send Content-Type: application/json, not {kind}.",
            code="unsupported_media_type",
        )
    packed = request.headers.get("Content-Encoding", "").strip().lower()
    if packed not in ENCODINGS:
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's Content-Encoding must be gzip, deflate or identity, not {packed}.",
            code="unsupported_encoding",
        )
    # A client that says how much it has is not made to send it first.
    if (request.content_length or 0) > request.client_max_size:
        raise _too_large()
    try:
        return await _read(request)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"Nothing of the body came for {BODY_IDLE_S:g} s.",
            code="request_timeout",
        ) from None
    except web.RequestPayloadError as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "The body cannot be read: its chunks or its Content-Encoding are broken.",
            code="invalid_body",
        ) from error


async def _read(request: web.Request) -> bytes:
    """All of the body, as long as it keeps coming and stays below the limit."""
    body = bytearray()
    while True:
        async with asyncio.timeout(BODY_IDLE_S):
            piece = await request.content.readany()
        if not piece:
            return bytes(body)
        body += piece
        if len(body) > request.client_max_size:
            raise _too_large()


def _too_large() -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Request body too large.", code="body_too_large"
    )
