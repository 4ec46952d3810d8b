"""Reads request bodies: their length, type and encoding are checked before they are parsed."""

from http import HTTPStatus

from aiohttp import web

from mlxcel_cli.serve.errors import ApiError


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
    # A client that says how much it has is not made to send it first.
    if (request.content_length or 0) > request.client_max_size:
        raise _too_large()
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except web.RequestPayloadError as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "The body cannot be read: its chunks or its Content-Encoding are broken.",
            code="invalid_body",
        ) from error


def _too_large() -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Request body too large.", code="body_too_large"
    )
