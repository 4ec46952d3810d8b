"""What an API of the server is made of: its routes, and the form of its errors."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import msgspec
from aiohttp import web

from mlxcel_cli.serve.errors import ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """How the paths of one API report errors."""

    error_type: type[msgspec.Struct]
    error_body: Callable[[ApiError, str], msgspec.Struct]
    """The body of an error; the second argument is the request's id."""
    overloaded: int = HTTPStatus.SERVICE_UNAVAILABLE
    """The status of a server that has to send clients away."""
    request_id_header: str | None = None
    """Where clients look for the request's id, besides ``X-Request-Id``."""
    errors: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Statuses that only this API uses, for the OpenAPI document."""

    def error(self, error: ApiError, request_id: str) -> tuple[int, msgspec.Struct]:
        """Status and body of an error."""
        unavailable = error.status is HTTPStatus.SERVICE_UNAVAILABLE
        status = self.overloaded if unavailable else error.status
        return status, self.error_body(error, request_id)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: what is served, and what the OpenAPI document says about it."""

    method: str
    """``*``: any."""
    path: str
    """As aiohttp writes it."""
    handler: Handler
    api: Api
    body: Any = None
    """The type of its body; None: it has none."""
    response: Any = None
    """The type of a good response; None: any JSON."""
    event: Any = None
    """The type of an event of a stream; None: the endpoint does not stream."""
    content_type: str = "application/json"
    query: tuple[str, ...] = ()
    is_public: bool = False
    """Whether it is served without a key."""
    is_disabled: bool = False
    """Whether every request is refused."""
    errors: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Statuses that only this endpoint has, and what they mean."""

    @property
    def template(self) -> str:
        """The path as the OpenAPI document writes it: without patterns."""
        return re.sub(r":[^}]*", "", self.path)

    @property
    def summary(self) -> str:
        """What the endpoint does: the first line of its handler's docstring."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]


def json_response(value: object, status: int = 200) -> web.Response:
    """A JSON body."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )
