"""Pages about the server itself: health, information, settings, metrics, OpenAPI."""

from http import HTTPStatus

import msgspec
from aiohttp import web

from engine.errors import InvalidParams
from mlxcel_cli.serve.answering import json_response
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.errors import UNAVAILABLE, ApiError, loading_error
from mlxcel_cli.serve.metrics import CONTENT_TYPE
from mlxcel_cli.serve.schema.openapi import openapi
from mlxcel_cli.serve.schema.responses import HealthBody
from mlxcel_cli.serve.server import SERVER
from mlxcel_cli.serve.settings import settings_report
from mlxcel_cli.serve.worker import Phase


async def health(request: web.Request) -> web.Response:
    """200 when requests are taken; how busy it is does not matter."""
    phase = request.app[SERVER].worker.phase
    if phase in {Phase.SERVING, Phase.ASLEEP}:
        return json_response(HealthBody())
    if phase is Phase.LOADING:
        raise loading_error()
    raise ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The server is {phase.value}.",
        kind=UNAVAILABLE,
        code=f"server_{phase.value}",
    )


async def information(request: web.Request) -> web.Response:
    """What this server is and which endpoints it has."""
    server = request.app[SERVER]
    model = server.worker.model
    return json_response(
        {
            "name": "mlxcel",
            "version": server.version,
            "status": server.worker.phase.value,
            "model": None if model is None else server.names(model)[0],
            "endpoints": sorted(
                {
                    f"{route.method} {route.resource.canonical}"
                    for route in request.app.router.routes()
                    if route.resource is not None and route.method != "HEAD"
                }
            ),
        }
    )


async def show_settings(request: web.Request) -> web.Response:
    """Every setting in force, without secrets."""
    return json_response({"settings": settings_report(request.app[SERVER].settings)})


async def change_settings(request: web.Request) -> web.Response:
    """Change changeable settings; only where a key guards the server."""
    server = request.app[SERVER]
    if not (server.settings.api_key or server.settings.api_key_file):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "Settings change only on a server with --api-key: anyone may ask this one.",
            kind="permission_error",
            code="no_api_key",
        )
    try:
        changes = msgspec.json.decode(await read_body(request), type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidParams("body", f"is not a JSON object: {error}") from None
    server.settings = server.settings.changed(changes)
    return json_response({"settings": settings_report(server.settings)})


async def metrics(request: web.Request) -> web.Response:
    """Counts and gauges for Prometheus."""
    text = request.app[SERVER].metrics.text()
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def openapi_document(request: web.Request) -> web.Response:
    """The API as an OpenAPI 3.1 document."""
    return json_response(openapi(request.app[SERVER].version))
