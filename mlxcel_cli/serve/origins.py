"""Which web pages may send requests, and by which names the server is asked.

A browser sends any page's requests to a local server. What tells them apart is the Origin header;
a page that lets a name of its own resolve to this machine (DNS rebinding) by the Host header.
"""

from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from mlxcel_cli.serve.api import Handler
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.server import SERVER

LOCALHOST = "localhost"
"""Of ``--cors-origin``: pages that this machine serves itself, on any port."""


@web.middleware
async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse, before any work, pages that may not ask and names that are not the server's."""
    settings = request.app[SERVER].settings
    host = request.headers.get(hdrs.HOST)
    listens_locally = settings.socket_path is None and is_loopback(settings.host)
    if host is not None and listens_locally and not _is_known(host, settings.allowed_host):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            f"This server is not known as {host[:200]}; --allowed-host adds a name.",
            code="host_not_allowed",
        )
    if hdrs.ORIGIN in request.headers and allowed_origin(request) is None:
        origin = request.headers[hdrs.ORIGIN][:200]
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            f"Pages of {origin} may not ask; --cors-origin names those that may.",
            code="origin_not_allowed",
        )
    return await handler(request)


def allowed_origin(request: web.Request) -> str | None:
    """The request's origin, if its pages may ask; None: they may not."""
    origin = request.headers[hdrs.ORIGIN]
    allowed = request.app[SERVER].settings.origins
    if allowed is None or origin in allowed:
        return origin
    page = urlsplit(origin)
    if page.netloc and page.netloc == request.headers.get(hdrs.HOST):
        return origin
    return origin if LOCALHOST in allowed and is_loopback(page.hostname or "") else None


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    if host == LOCALHOST or host.endswith(f".{LOCALHOST}"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_known(host: str, allowed: tuple[str, ...]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name in allowed or "*" in allowed
