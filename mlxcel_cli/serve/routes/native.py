"""llama.cpp's generation endpoints: ``POST /completion`` (``/completions``) and ``/infill``."""

from aiohttp import web

from mlxcel_cli.serve.answering import answer_stream, answer_whole
from mlxcel_cli.serve.asking import Prompt, Ticket, priority_of
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.native_asking import infill_prompt, native_ask, native_prompts
from mlxcel_cli.serve.native_telling import NativePlan
from mlxcel_cli.serve.schema.fields import parse_body
from mlxcel_cli.serve.schema.native import NATIVE, InfillRequest, NativeOptions, NativeRequest
from mlxcel_cli.serve.server import SERVER, new_id


async def completion(request: web.Request) -> web.StreamResponse:
    """Go on from a text or token ids; the shape is llama.cpp's, not OpenAI's."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, NativeRequest, NATIVE)
    model = server.model_for_answer()
    prompts = await server.text_work(lambda: native_prompts(body.prompt, model), len(raw))
    return await _answer(request, body, prompts)


async def infill(request: web.Request) -> web.StreamResponse:
    """Write what stands between a prefix and a suffix."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, InfillRequest, NATIVE)
    model = server.model_for_answer()
    prompt = await server.text_work(lambda: infill_prompt(body, model), len(raw))
    return await _answer(request, body, (prompt,))


async def _answer(
    request: web.Request, body: NativeOptions, prompts: tuple[Prompt, ...]
) -> web.StreamResponse:
    server = request.app[SERVER]
    model = server.worker.ready_model()
    name = server.require_name(body.model, model)
    ticket = Ticket(new_id("cmpl"), priority_of(request.headers.get("X-Priority")))
    asked = native_ask(body, prompts, model, server.defaults, ticket)
    plan = NativePlan(asked, body, model, name, is_list=len(prompts) > 1)
    if body.stream:
        return await answer_stream(request, server, plan)
    return await answer_whole(request, server, plan)
