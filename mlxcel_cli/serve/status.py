"""Endpoints about the server itself: health, settings, metrics, prompt cache, OpenAPI."""

from dataclasses import asdict
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from aiohttp import web

from engine.errors import InvalidParams
from mlxcel_cli.serve.api import Endpoint, json_response
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.errors import UNAVAILABLE, ApiError, loading_error
from mlxcel_cli.serve.llamacpp.schema import LLAMACPP
from mlxcel_cli.serve.metrics import CONTENT_TYPE
from mlxcel_cli.serve.openai.schema import OPENAI
from mlxcel_cli.serve.server import SERVER
from mlxcel_cli.serve.settings import settings_report
from mlxcel_cli.serve.worker import ServerPhase


class HealthBody(msgspec.Struct, frozen=True):
    """The server can answer."""

    status: Literal["ok"] = "ok"


async def health(request: web.Request) -> web.Response:
    """Whether requests are taken; how busy the server is does not matter."""
    phase = request.app[SERVER].worker.phase
    if phase in {ServerPhase.SERVING, ServerPhase.ASLEEP}:
        return json_response(HealthBody())
    if phase is ServerPhase.LOADING:
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
            "Settings change only on a server with --api-key: this one serves anyone.",
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


async def cache_stats(request: web.Request) -> web.Response:
    """What the prompt cache holds and how often it helped."""
    stats = request.app[SERVER].worker.stats
    if stats is None or stats.cache is None:
        return json_response({"enabled": False})
    held, counters = stats.cache, stats.cache.counters
    return json_response(
        {
            "enabled": True,
            "entries": held.entries,
            "tokens": held.tokens,
            "bytes": held.nbytes,
            "pending": held.pending,
            "files": held.disk_entries,
            "file_bytes": held.disk_bytes,
            "file_faults": held.disk_faults,
            "limits": asdict(held.limits) | {"folder": str(held.limits.folder or "") or None},
            "hit_rate": round(counters.hits / counters.lookups, 4) if counters.lookups else 0.0,
            **asdict(counters),
        }
    )


async def cache_reset(request: web.Request) -> web.Response:
    """Empty the prompt cache; answers that run are not disturbed."""
    request.app[SERVER].worker.clear_cache()
    return json_response({"status": "ok"})


ROUTES = (
    Endpoint("GET", "/", information, OPENAI),
    Endpoint("GET", "/health", health, LLAMACPP, response=HealthBody, is_public=True),
    Endpoint("GET", "/v1/health", health, LLAMACPP, response=HealthBody, is_public=True),
    Endpoint("GET", "/v1/settings", show_settings, OPENAI),
    Endpoint(
        "POST",
        "/v1/settings",
        change_settings,
        OPENAI,
        body=dict[str, Any],
        errors=MappingProxyType({403: "No key guards this server, so anyone might change it."}),
    ),
    Endpoint("GET", "/v1/cache/stats", cache_stats, OPENAI),
    Endpoint("POST", "/v1/cache/reset", cache_reset, OPENAI),
    Endpoint("GET", "/metrics", metrics, OPENAI, content_type="text/plain"),
)
