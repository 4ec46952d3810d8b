"""``POST /v1/messages`` and its ``count_tokens``, in the shape of Anthropic's API."""

from aiohttp import web

from mlxcel_cli.serve.answering import answer_stream, answer_whole, json_response
from mlxcel_cli.serve.asking import Ticket, ask, chat_prompt, priority_of
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.message_asking import chat_of
from mlxcel_cli.serve.message_telling import MessagePlan
from mlxcel_cli.serve.schema.anthropic import MESSAGES, CountTokensRequest, MessagesRequest
from mlxcel_cli.serve.schema.fields import parse_body
from mlxcel_cli.serve.schema.native import InputTokensBody
from mlxcel_cli.serve.server import REQUEST_ID, SERVER, new_id
from mlxcel_cli.serve.thinking_budget import bounded


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, MessagesRequest, MESSAGES)
    model = server.model_for_answer()
    server.require_name(body.model, model)
    chat = chat_of(body, model)
    prompt = await server.text_work(lambda: chat_prompt(chat, model), len(raw))
    marks = () if model.template is None else model.template.thinking_marks
    ticket = Ticket(
        new_id("msg").replace("-", "_"),
        priority_of(request.headers.get("X-Priority")),
        keep_texts=tuple(text for mark in marks for text in (mark.open, mark.close)),
    )
    asked = ask(chat, (prompt,), model, server.defaults, ticket)
    plan = MessagePlan(
        bounded(asked, model, chat.thinking_budget),
        ticket.id,
        request[REQUEST_ID],
        model,
        body.model,
        marks,
    )
    if body.stream:
        return await answer_stream(request, server, plan)
    return await answer_whole(request, server, plan)


async def count_tokens(request: web.Request) -> web.Response:
    """How many tokens a conversation is."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, CountTokensRequest, MESSAGES)
    model = server.worker.ready_model()
    server.require_name(body.model, model)
    chat = chat_of(body, model)
    prompt = await server.text_work(lambda: chat_prompt(chat, model, must_fit=False), len(raw))
    return json_response(InputTokensBody(len(prompt.ids)))
