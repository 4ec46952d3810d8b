"""The aiohttp application: routes, and what surrounds them."""

from aiohttp import web

from mlxcel_cli.serve.middleware import (
    add_headers,
    answer_preflights,
    check_key,
    name_request,
    tell_errors,
)
from mlxcel_cli.serve.routes.cache import cache_reset, cache_stats
from mlxcel_cli.serve.routes.chat import chat_completions
from mlxcel_cli.serve.routes.completions import completions
from mlxcel_cli.serve.routes.models import list_models, one_model
from mlxcel_cli.serve.routes.status import (
    change_settings,
    health,
    information,
    metrics,
    openapi_document,
    show_settings,
)
from mlxcel_cli.serve.server import SERVER, Server


def make_app(server: Server, keys: tuple[bytes, ...]) -> web.Application:
    """Everything a client can ask of ``server``.

    Args:
        server: its state.
        keys: one of them must come with every request but for health; none: anyone may ask.
    """
    app = web.Application(
        client_max_size=server.settings.max_body_bytes,
        middlewares=[name_request, answer_preflights, tell_errors, check_key(keys)],
    )
    app[SERVER] = server
    app.on_response_prepare.append(add_headers)
    app.add_routes(
        [
            web.get("/", information),
            web.get("/health", health),
            web.get("/v1/health", health),
            web.post("/v1/chat/completions", chat_completions),
            web.post("/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", list_models),
            web.get("/models", list_models),
            web.get("/v1/models/{model:.+}", one_model),
            web.get("/v1/settings", show_settings),
            web.post("/v1/settings", change_settings),
            web.get("/v1/cache/stats", cache_stats),
            web.post("/v1/cache/reset", cache_reset),
            web.get("/metrics", metrics),
            web.get("/openapi.json", openapi_document),
        ]
    )
    return app
