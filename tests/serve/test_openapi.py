"""The OpenAPI document and the server's routes are the same API."""

import pytest

from mlxcel_cli.serve.anthropic.schema import OVERLOADED
from mlxcel_cli.serve.app import ROUTES, make_app
from mlxcel_cli.serve.generation import Defaults
from mlxcel_cli.serve.openapi import openapi
from mlxcel_cli.serve.server import Server
from mlxcel_cli.serve.settings import settle
from mlxcel_cli.serve.worker import EngineWorker
from mlxcel_cli.serve_options import ServeOptions

PATHS = openapi("0", ROUTES)["paths"]
LLAMA_PATHS = {
    "/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template",
    "/props", "/slots", "/tools", "/cors-proxy", "/health", "/v1/health",
}  # fmt: skip
ANTHROPIC_PATHS = {"/v1/messages", "/v1/messages/count_tokens"}
BODIES = {"LLAMA": "NativeErrorBody", "ANTHROPIC": "MessagesErrorBody", "OPENAI": "ErrorBody"}
OPERATIONS = [(path, method) for path, methods in PATHS.items() for method in methods]


@pytest.fixture(scope="module")
def routes():
    worker = EngineWorker(lambda report: None, on_progress=lambda progress: None)
    server = Server(worker, settle(ServeOptions()), Defaults({}), asked_name=None, version="0")
    app = make_app(server, ())
    found = {
        (route.resource.canonical, route.method.lower())
        for route in app.router.routes()
        if route.method != "HEAD"
    }
    server.close()
    return found


def test_every_route_is_documented_and_every_documented_one_is_a_route(routes):
    anything = {path for path, method in routes if method == "*"}
    assert anything == {"/tools", "/cors-proxy"}
    assert {path for path, _ in OPERATIONS} >= anything
    documented = {(path, method) for path, method in OPERATIONS if path not in anything}
    assert documented == {(path, method) for path, method in routes if method != "*"}


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_errors_are_documented_with_the_body_of_their_path_s_api(path, method):
    responses = PATHS[path][method]["responses"]
    errors = {status: one for status, one in responses.items() if status != "200"}
    api = "LLAMA" if path in LLAMA_PATHS else "ANTHROPIC" if path in ANTHROPIC_PATHS else "OPENAI"
    for one in errors.values():
        (kind,) = one["content"]
        assert one["content"][kind]["schema"]["$ref"].endswith(f"/{BODIES[api]}")
    assert {"400", "401", "404", "405", "408", "413", "415", "500", "503"} <= set(errors)
    assert (str(OVERLOADED) in errors) == (api == "ANTHROPIC")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/models/other", None, 404),
        ("POST", "/v1/settings", {}, 403),
        ("POST", "/props", {}, 501),
        ("GET", "/tools", None, 403),
        ("POST", "/v1/messages/count_tokens", {"model": "tiny", "messages": []}, 400),
        ("POST", "/v1/messages/count_tokens",
         {"model": "x", "messages": [{"role": "user", "content": "a"}]}, 404),
        ("POST", "/v1/cache/reset", None, 200),
        ("GET", "/models", None, 200),
    ],
)  # fmt: skip
def test_what_is_answered_is_documented(server, method, path, body, status):
    reply = server.ask(method, path, body)
    assert reply.status == status
    template = "/v1/models/{model}" if path.startswith("/v1/models/") else path
    assert str(status) in PATHS[template][method.lower()]["responses"]
