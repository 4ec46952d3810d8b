"""``POST /v1/chat/completions``."""

from dataclasses import replace

from aiohttp import web

from mlxcel_cli.serve.answering import Plan, answer_stream, answer_whole
from mlxcel_cli.serve.asking import Ticket, ask, chat_logprobs, chat_prompt, priority_of
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.schema.fields import parse_body
from mlxcel_cli.serve.schema.requests import ChatRequest
from mlxcel_cli.serve.server import SERVER, Server, new_id
from mlxcel_cli.serve.shapes import ChatShape, Head
from mlxcel_cli.serve.thinking_budget import bounded


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    server = request.app[SERVER]
    raw = await read_body(request)
    chat = parse_body(raw, ChatRequest)
    ticket = Ticket(
        new_id("chatcmpl"), priority_of(request.headers.get("X-Priority")), chat_logprobs(chat)
    )
    plan = await _plan(server, chat, ticket, len(raw))
    if chat.stream:
        return await answer_stream(request, server, plan)
    return await answer_whole(request, server, plan)


async def _plan(server: Server, chat: ChatRequest, ticket: Ticket, nbytes: int) -> Plan:
    model = server.model_for_answer()
    name = server.require_name(chat.model, model)
    prompt = await server.text_work(lambda: chat_prompt(chat, model), nbytes)
    marks = () if model.template is None else model.template.thinking_marks
    kept = tuple(text for mark in marks for text in (mark.open, mark.close))
    asked = ask(chat, (prompt,), model, server.defaults, replace(ticket, keep_texts=kept))
    asked = bounded(asked, model, chat.thinking_budget)
    return Plan(
        asked=asked,
        shape=ChatShape(Head.now(ticket.id, name, server.fingerprint, asked.seed), model.tokenizer),
        model=model,
        marks=() if server.settings.reasoning_format == "none" else marks,
        options=chat.stream_options,
        is_timed=chat.timings_per_token,
        tells_progress=chat.return_progress,
    )
