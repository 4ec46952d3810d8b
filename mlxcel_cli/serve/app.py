"""The aiohttp application: routes, and what surrounds them."""

from aiohttp import HttpVersion11, web

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
from mlxcel_cli.serve.routes.messages import count_tokens, messages
from mlxcel_cli.serve.routes.models import list_models, one_model
from mlxcel_cli.serve.routes.native import completion, infill
from mlxcel_cli.serve.routes.state import change_props, disabled, show_props, show_slots
from mlxcel_cli.serve.routes.status import (
    change_settings,
    health,
    information,
    metrics,
    openapi_document,
    show_settings,
)
from mlxcel_cli.serve.routes.tokens import apply_template, detokenize, input_tokens, tokenize
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
        _expecting(
            web.get("/", information),
            web.get("/health", health),
            web.get("/v1/health", health),
            web.post("/v1/chat/completions", chat_completions),
            web.post("/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.post("/v1/chat/completions/input_tokens", input_tokens),
            web.post("/v1/messages", messages),
            web.post("/v1/messages/count_tokens", count_tokens),
            web.post("/completion", completion),
            web.post("/completions", completion),
            web.post("/infill", infill),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
            web.post("/apply-template", apply_template),
            web.get("/props", show_props),
            web.post("/props", change_props),
            web.get("/slots", show_slots),
            web.route("*", "/tools", disabled),
            web.route("*", "/cors-proxy", disabled),
            web.get("/v1/models", list_models),
            web.get("/models", list_models),
            web.get("/v1/models/{model:.+}", one_model),
            web.get("/v1/settings", show_settings),
            web.post("/v1/settings", change_settings),
            web.get("/v1/cache/stats", cache_stats),
            web.post("/v1/cache/reset", cache_reset),
            web.get("/metrics", metrics),
            web.get("/openapi.json", openapi_document),
        )
    )
    return app


def _expecting(*routes: web.RouteDef) -> list[web.RouteDef]:
    for route in routes:
        route.kwargs["expect_handler"] = send_continue
    return list(routes)


async def send_continue(request: web.Request) -> None:
    """Let a client send the body it holds back; another expectation is ignored, as HTTP allows.

    aiohttp would answer that one itself, past our errors' shape.
    """
    asked = request.headers.get("Expect", "")
    if request.version == HttpVersion11 and asked.lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is no part of the response
