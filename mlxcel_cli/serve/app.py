"""The aiohttp application: the routes of all APIs, and what surrounds them."""

from aiohttp import HttpVersion11, web

from mlxcel_cli.serve import status
from mlxcel_cli.serve.anthropic import routes as anthropic
from mlxcel_cli.serve.api import Endpoint, json_response
from mlxcel_cli.serve.llamacpp import routes as llamacpp
from mlxcel_cli.serve.middleware import (
    APIS,
    add_headers,
    answer_preflights,
    check_key,
    name_request,
    report_errors,
)
from mlxcel_cli.serve.openai import routes as openai
from mlxcel_cli.serve.openai.schema import OPENAI
from mlxcel_cli.serve.openapi import openapi
from mlxcel_cli.serve.origins import check_origin
from mlxcel_cli.serve.server import SERVER, Server


async def openapi_document(request: web.Request) -> web.Response:
    """This API as an OpenAPI 3.1 document."""
    return json_response(openapi(request.app[SERVER].version, ROUTES))


ROUTES = (
    *status.ROUTES,
    *openai.ROUTES,
    *llamacpp.ROUTES,
    *anthropic.ROUTES,
    Endpoint("GET", "/openapi.json", openapi_document, OPENAI),
)
"""Every endpoint."""


def make_app(server: Server, keys: tuple[bytes, ...]) -> web.Application:
    """Everything a client can ask of ``server``.

    Args:
        server: its state.
        keys: one of them must come with every request but for health; none: anyone may ask.
    """
    public = frozenset(route.path for route in ROUTES if route.is_public)
    app = web.Application(
        client_max_size=server.settings.max_body_bytes,
        middlewares=[
            name_request,
            answer_preflights,
            report_errors,
            check_origin,
            check_key(keys, public),
        ],  # fmt: skip,
    )
    app[SERVER] = server
    app[APIS] = {route.path: route.api for route in ROUTES}
    app.on_response_prepare.append(add_headers)
    expecting = {"expect_handler": send_continue}
    app.add_routes(web.RouteDef(one.method, one.path, one.handler, expecting) for one in ROUTES)
    return app


async def send_continue(request: web.Request) -> None:
    """Let a client send the body it holds back; another expectation is ignored, as HTTP allows.

    aiohttp would answer that one itself, past our errors' form.
    """
    expected = request.headers.get("Expect", "")
    if request.version == HttpVersion11 and expected.lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is no part of the response
