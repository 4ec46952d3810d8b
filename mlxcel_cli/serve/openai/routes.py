"""OpenAI's endpoints: chat completions, legacy completions, models, and a conversation's length."""

from aiohttp import web

from mlxcel_cli.serve.api import Endpoint, json_response
from mlxcel_cli.serve.bodies import read_json
from mlxcel_cli.serve.choices import choices_of
from mlxcel_cli.serve.delivery import respond
from mlxcel_cli.serve.generation import Generation, plan_generation, priority_of
from mlxcel_cli.serve.openai.request import (
    chat_of,
    chat_spec,
    completion_prompts,
    completion_spec,
)
from mlxcel_cli.serve.openai.response import ChatFormatter, CompletionFormatter, Head
from mlxcel_cli.serve.openai.schema import (
    OPENAI,
    OPENAI_FIELDS,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    InputTokensBody,
    ModelEntry,
    ModelList,
    ModelMeta,
)
from mlxcel_cli.serve.prompts import EncodedPrompt, encode_chat
from mlxcel_cli.serve.response import ResponseStream
from mlxcel_cli.serve.server import SERVER, Server, new_id


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, ChatRequest, OPENAI_FIELDS)
    spec = chat_spec(body, priority_of(request))
    model = server.model_for_generation()
    name = server.require_name(body.model, model)
    id_ = new_id("chatcmpl")

    def plan() -> Generation:
        prompt = encode_chat(chat_of(body), model)
        return plan_generation(spec, (prompt,), model, server.defaults, id_)

    generation = await server.text_work(plan, nbytes)
    marks = () if server.settings.reasoning_format == "none" else model.thinking_marks
    choices = choices_of(generation, model.tokenizer, marks)
    head = Head.now(id_, name, server.fingerprint, generation.seed)
    response = ResponseStream(
        choices,
        ChatFormatter(head, choices, body.stream_options),
        has_timings=body.timings_per_token,
        has_progress=body.return_progress,
    )
    return await respond(request, generation, response, OPENAI, stream=body.stream)


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue texts or token ids, without a chat template."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, CompletionRequest, OPENAI_FIELDS)
    spec = completion_spec(body, priority_of(request))
    model = server.model_for_generation()
    name = server.require_name(body.model, model)
    id_ = new_id("cmpl")

    def plan() -> Generation:
        prompts = completion_prompts(body, model)
        return plan_generation(spec, prompts, model, server.defaults, id_)

    generation = await server.text_work(plan, nbytes)
    choices = choices_of(generation, model.tokenizer)
    head = Head.now(id_, name, server.fingerprint, generation.seed)
    response = ResponseStream(
        choices,
        CompletionFormatter(head, choices, body.stream_options, echo=body.echo),
        has_timings=body.timings_per_token,
        has_progress=body.return_progress,
    )
    return await respond(request, generation, response, OPENAI, stream=body.stream)


async def input_tokens(request: web.Request) -> web.Response:
    """Count a conversation's tokens, by the same path as an answer to it."""
    return json_response(InputTokensBody(len((await read_chat(request)).ids)))


async def list_models(request: web.Request) -> web.Response:
    """The model that is served."""
    return json_response(ModelList([_entry(request.app[SERVER])]))


async def one_model(request: web.Request) -> web.Response:
    """The model of a name, if it is served."""
    server = request.app[SERVER]
    server.require_name(request.match_info["model"], server.worker.ready_model())
    return json_response(_entry(server))


async def read_chat(request: web.Request) -> EncodedPrompt:
    """The conversation of a request that wants no answer: of any length."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, ChatRequest, OPENAI_FIELDS)
    model = server.worker.ready_model()
    server.require_name(body.model, model)
    chat = chat_of(body)
    return await server.text_work(lambda: encode_chat(chat, model, must_fit=False), nbytes)


def _entry(server: Server) -> ModelEntry:
    model = server.worker.ready_model()
    name, *others = server.names(model)
    facts = model.facts
    return ModelEntry(
        id=name,
        created=server.started,
        aliases=sorted(others),
        tags=[],
        capabilities=["completion"] if model.template is None else ["completion", "chat"],
        meta=ModelMeta(
            family=facts.family,
            context_tokens=model.context_tokens,
            train_context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            dtype=facts.dtype,
            quantization=facts.quantization,
            weight_bytes=facts.weight_bytes,
        ),
    )


_CHAT = (chat_completions, OPENAI, ChatRequest, ChatCompletion, ChatChunk)

ROUTES = (
    Endpoint("POST", "/v1/chat/completions", *_CHAT),
    Endpoint("POST", "/chat/completions", *_CHAT),
    Endpoint(
        "POST", "/v1/completions", completions, OPENAI, CompletionRequest, Completion, Completion
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions/input_tokens",
        input_tokens,
        OPENAI,
        ChatRequest,
        InputTokensBody,
    ),
    Endpoint("GET", "/v1/models", list_models, OPENAI, response=ModelList),
    Endpoint("GET", "/models", list_models, OPENAI, response=ModelList),
    Endpoint("GET", "/v1/models/{model:.+}", one_model, OPENAI, response=ModelEntry),
)
