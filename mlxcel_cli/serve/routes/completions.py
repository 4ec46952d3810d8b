"""``POST /v1/completions``, OpenAI's legacy endpoint."""

from aiohttp import web

from mlxcel_cli.serve.answering import Plan, answer_stream, answer_whole
from mlxcel_cli.serve.asking import (
    Ticket,
    ask,
    completion_logprobs,
    completion_prompts,
    priority_of,
)
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.schema.fields import parse_body
from mlxcel_cli.serve.schema.requests import CompletionRequest
from mlxcel_cli.serve.server import SERVER, Server, new_id
from mlxcel_cli.serve.shapes import CompletionShape, Head


async def completions(request: web.Request) -> web.StreamResponse:
    """Go on from texts or token ids, without a chat template."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, CompletionRequest)
    ticket = Ticket(
        new_id("cmpl"), priority_of(request.headers.get("X-Priority")), completion_logprobs(body)
    )
    plan = await _plan(server, body, ticket, len(raw))
    if body.stream:
        return await answer_stream(request, server, plan)
    return await answer_whole(request, server, plan)


async def _plan(server: Server, body: CompletionRequest, ticket: Ticket, nbytes: int) -> Plan:
    model = server.model_for_answer()
    name = server.require_name(body.model, model)
    prompts = await server.text_work(lambda: completion_prompts(body, model), nbytes)
    asked = ask(body, prompts, model, server.defaults, ticket)
    echoes = [asked.prompt_of(i).text if body.echo else "" for i in range(len(asked.rows))]
    head = Head.now(ticket.id, name, server.fingerprint, asked.seed)
    return Plan(
        asked=asked,
        shape=CompletionShape(head, model.tokenizer, echoes),
        model=model,
        options=body.stream_options,
        is_timed=body.timings_per_token,
        tells_progress=body.return_progress,
    )
