"""What happens around every handler: request ids, CORS, errors in one form, keys."""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path

from aiohttp import hdrs, web

from engine.errors import InvalidParams
from mlxcel_cli.serve.api import Api, Handler, json_response
from mlxcel_cli.serve.bodies import SPELLINGS
from mlxcel_cli.serve.errors import ApiError, api_error
from mlxcel_cli.serve.openai.schema import OPENAI
from mlxcel_cli.serve.origins import allowed_origin
from mlxcel_cli.serve.server import OWNER, REQUEST_ID

logger = logging.getLogger(__name__)

APIS: web.AppKey[Mapping[str, Api]] = web.AppKey("apis", Mapping)
"""Path to the API that it is part of."""
REQUEST_ID_HEADER = "X-Request-Id"
PREFLIGHT_KEPT_S = "600"

_SOUND_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@web.middleware
async def name_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request the id that its client chose, or a new one."""
    asked = request.headers.get(REQUEST_ID_HEADER, "")
    sound = _SOUND_ID.fullmatch(asked) is not None
    request[REQUEST_ID] = asked if sound else f"req-{secrets.token_hex(8)}"
    return await handler(request)


@web.middleware
async def answer_preflights(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a browser's CORS preflight before keys and routes are looked at."""
    asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
    if request.method != hdrs.METH_OPTIONS or asked is None or hdrs.ORIGIN not in request.headers:
        return await handler(request)
    response = web.Response(status=HTTPStatus.NO_CONTENT)
    if allowed_origin(request) is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = "GET, POST, OPTIONS"
        wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
        if wanted:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
        response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = PREFLIGHT_KEPT_S
        if "Access-Control-Request-Private-Network" in request.headers:
            response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


@web.middleware
async def report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into the error body of its path's API."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        return _of_aiohttp(request, error)
    except ConnectionError:
        raise
    except Exception as error:
        reported = api_error(_as_spelt(request, error))
        if reported.code == "internal_error":
            logger.exception("%s %s failed", request.method, request.path)
        return _error_response(request, reported)


def _as_spelt(request: web.Request, error: Exception) -> Exception:
    """The error with its field named as the client wrote it."""
    if isinstance(error, InvalidParams) and error.field in request.get(SPELLINGS, {}):
        return InvalidParams(request[SPELLINGS][error.field], error.problem)
    return error


def check_key(
    keys: tuple[bytes, ...], public: frozenset[str]
) -> Callable[..., Awaitable[web.StreamResponse]]:
    """A middleware that refuses requests without one of these keys, except to public paths.

    Without any key all requests pass.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if keys and request.path not in public and not _has_key(request, keys):
            # The same words for a missing and a wrong key.
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "Invalid API key.",
                kind="authentication_error",
                code="invalid_api_key",
            )
        if keys:
            request[OWNER] = hashlib.sha256(_given_key(request)).hexdigest()[:16]
        return await handler(request)

    return check


def read_keys(keys: tuple[str, ...], file: Path | None) -> tuple[bytes, ...]:
    """The keys of options and file.

    Raises:
        InvalidParams: the file cannot be read, or a key is empty.
    """
    found = list(keys)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParams("--api-key-file", f"cannot be read: {error}") from error
        stripped = map(str.strip, lines)
        found += [line for line in stripped if line and not line.startswith("#")]
        if not found:
            raise InvalidParams("--api-key-file", f"{file} holds no key")
    if not all(key.strip() for key in found):
        raise InvalidParams("--api-key", "must not be empty")
    return tuple(key.encode() for key in found)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal: every response carries the request's id and the CORS headers it is due."""
    response.headers.setdefault(REQUEST_ID_HEADER, request.get(REQUEST_ID, ""))
    if (header := _api(request).request_id_header) is not None:
        response.headers.setdefault(header, request.get(REQUEST_ID, ""))
    if hdrs.ORIGIN not in request.headers:
        return
    response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    origin = allowed_origin(request)
    if origin is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = f"{REQUEST_ID_HEADER}, Retry-After"


def _has_key(request: web.Request, keys: tuple[bytes, ...]) -> bool:
    given = _given_key(request)
    return any(hmac.compare_digest(given, key) for key in keys)


def _given_key(request: web.Request) -> bytes:
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else request.headers.get("X-Api-Key", "")
    return given.encode(errors="surrogateescape")


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> web.Response:
    reasons = {
        404: f"There is no {request.path} here; GET / lists what there is.",
        405: f"{request.path} does not take {request.method}.",
    }
    status = HTTPStatus(error.status)
    reason = reasons.get(error.status, error.reason)
    code = status.phrase.lower().replace(" ", "_")
    response = _error_response(request, ApiError(status, reason, code=code))
    if hdrs.ALLOW in error.headers:
        response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    return response


def _error_response(request: web.Request, error: ApiError) -> web.Response:
    status, body = _api(request).error(error, request.get(REQUEST_ID, ""))
    response = json_response(body, status)
    response.headers.update(error.headers)
    return response


def _api(request: web.Request) -> Api:
    """The API of a request's path; where there is none, OpenAI's."""
    return request.app.get(APIS, {}).get(request.path, OPENAI)
