"""``POST /v1/messages`` and its ``count_tokens``."""

from aiohttp import web

from mlxcel_cli.serve.anthropic.request import chat_of, messages_spec
from mlxcel_cli.serve.anthropic.response import MessagesFormatter
from mlxcel_cli.serve.anthropic.schema import (
    ANTHROPIC,
    ANTHROPIC_FIELDS,
    CountTokensRequest,
    MessageBody,
    MessageEvent,
    MessagesRequest,
)
from mlxcel_cli.serve.api import Endpoint, json_response
from mlxcel_cli.serve.bodies import read_json
from mlxcel_cli.serve.choices import choices_of
from mlxcel_cli.serve.delivery import respond
from mlxcel_cli.serve.generation import Generation, plan_generation, priority_of
from mlxcel_cli.serve.openai.schema import InputTokensBody
from mlxcel_cli.serve.prompts import encode_chat
from mlxcel_cli.serve.response import ResponseStream
from mlxcel_cli.serve.server import REQUEST_ID, SERVER, new_id


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, in Anthropic's form."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, MessagesRequest, ANTHROPIC_FIELDS)
    model = server.model_for_generation()
    server.require_name(body.model, model)
    chat, spec = chat_of(body, model), messages_spec(body, priority_of(request))
    id_ = new_id("msg").replace("-", "_")

    def plan() -> Generation:
        return plan_generation(spec, (encode_chat(chat, model),), model, server.defaults, id_)

    generation = await server.text_work(plan, nbytes)
    choices = choices_of(generation, model.tokenizer, model.thinking_marks)
    formatter = MessagesFormatter(choices[0], id_, request[REQUEST_ID], body.model)
    response = ResponseStream(choices, formatter)
    return await respond(request, generation, response, ANTHROPIC, stream=body.stream)


async def count_tokens(request: web.Request) -> web.Response:
    """Count a conversation's tokens."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, CountTokensRequest, ANTHROPIC_FIELDS)
    model = server.worker.ready_model()
    server.require_name(body.model, model)
    chat = chat_of(body, model)
    prompt = await server.text_work(lambda: encode_chat(chat, model, must_fit=False), nbytes)
    return json_response(InputTokensBody(len(prompt.ids)))


_MESSAGES = (messages, ANTHROPIC, MessagesRequest, MessageBody, MessageEvent)
_COUNT = (count_tokens, ANTHROPIC, CountTokensRequest, InputTokensBody)

ROUTES = (
    Endpoint("POST", "/v1/messages", *_MESSAGES),
    Endpoint("POST", "/v1/messages/count_tokens", *_COUNT),
)
