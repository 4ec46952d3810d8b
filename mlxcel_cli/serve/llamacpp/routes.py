"""llama.cpp's endpoints: completions, infilling, tokens, templates, and its pages of the server."""

from collections.abc import Sequence

from aiohttp import web

from mlxcel_cli.serve.api import Endpoint, json_response
from mlxcel_cli.serve.bodies import read_json
from mlxcel_cli.serve.choices import choices_of
from mlxcel_cli.serve.delivery import respond
from mlxcel_cli.serve.generation import plan_generation, priority_of
from mlxcel_cli.serve.llamacpp.props import change_props, disabled, show_props, show_slots
from mlxcel_cli.serve.llamacpp.request import completion_prompts, infill_prompt, llamacpp_spec
from mlxcel_cli.serve.llamacpp.response import LlamaCppFormatter
from mlxcel_cli.serve.llamacpp.schema import (
    LLAMACPP,
    LLAMACPP_FIELDS,
    TOKENS_FIELDS,
    DetokenizeBody,
    DetokenizeRequest,
    InfillRequest,
    NativeCompletion,
    NativeFrame,
    NativeOptions,
    NativeRequest,
    TemplateBody,
    TokenizeBody,
    TokenizeRequest,
    TokenPiece,
)
from mlxcel_cli.serve.openai.routes import read_chat
from mlxcel_cli.serve.openai.schema import ChatRequest
from mlxcel_cli.serve.prompts import EncodedPrompt, mixed_ids
from mlxcel_cli.serve.response import ResponseStream
from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.server import SERVER, new_id


async def completion(request: web.Request) -> web.StreamResponse:
    """Continue a text or token ids, in llama.cpp's form."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, NativeRequest, LLAMACPP_FIELDS)
    model = server.model_for_generation()
    prompts = await server.text_work(lambda: completion_prompts(body.prompt, model), nbytes)
    return await _respond(request, body, prompts)


async def infill(request: web.Request) -> web.StreamResponse:
    """Fill in between two texts."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, InfillRequest, LLAMACPP_FIELDS)
    model = server.model_for_generation()
    prompt = await server.text_work(lambda: infill_prompt(body, model), nbytes)
    return await _respond(request, body, (prompt,))


async def tokenize(request: web.Request) -> web.Response:
    """The tokens of a text, or of texts and the token ids between them."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, TokenizeRequest, TOKENS_FIELDS)
    model = server.worker.ready_model()
    return json_response(await server.text_work(lambda: _tokenized(body, model), nbytes))


async def detokenize(request: web.Request) -> web.Response:
    """The text of tokens."""
    server = request.app[SERVER]
    body, nbytes = await read_json(request, DetokenizeRequest, TOKENS_FIELDS)
    model = server.worker.ready_model()
    return json_response(await server.text_work(lambda: _detokenized(body.tokens, model), nbytes))


async def apply_template(request: web.Request) -> web.Response:
    """A conversation as the model reads it."""
    return json_response(TemplateBody((await read_chat(request)).text))


async def _respond(
    request: web.Request, body: NativeOptions, prompts: tuple[EncodedPrompt, ...]
) -> web.StreamResponse:
    server = request.app[SERVER]
    model = server.worker.ready_model()
    name = server.require_name(body.model, model)
    spec = llamacpp_spec(body, priority_of(request))
    generation = await server.text_work(
        lambda: plan_generation(spec, prompts, model, server.defaults, new_id("cmpl")),
        request.content_length or 0,
    )
    choices = choices_of(generation, model.tokenizer)
    response = ResponseStream(
        choices,
        LlamaCppFormatter(generation, choices, body, name),
        has_timings=body.timings_per_token,
        has_progress=body.return_progress,
    )
    return await respond(request, generation, response, LLAMACPP, stream=body.stream)


def _tokenized(body: TokenizeRequest, model: ServedModel) -> TokenizeBody:
    tokenizer = model.tokenizer
    content = [body.content] if isinstance(body.content, str) else body.content
    ids = mixed_ids(content, model, field="content", parse_special=body.parse_special)
    bos = tokenizer.bos_id
    if body.add_special and tokenizer.adds_bos and bos is not None and ids[:1] != (bos,):
        ids = (bos, *ids)
    if not body.with_pieces:
        return TokenizeBody(list(ids))
    return TokenizeBody(
        [TokenPiece(one, _text_or_bytes(tokenizer.piece_bytes(one))) for one in ids]
    )


def _detokenized(tokens: Sequence[int], model: ServedModel) -> DetokenizeBody:
    ids = mixed_ids(tokens, model, field="tokens", parse_special=False)
    return DetokenizeBody(model.tokenizer.decode(ids, skip_special=False))


def _text_or_bytes(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


_COMPLETION = (completion, LLAMACPP, NativeRequest, NativeCompletion, NativeFrame)

ROUTES = (
    Endpoint("POST", "/completion", *_COMPLETION),
    Endpoint("POST", "/completions", *_COMPLETION),
    Endpoint("POST", "/infill", infill, LLAMACPP, InfillRequest, NativeCompletion, NativeFrame),
    Endpoint("POST", "/tokenize", tokenize, LLAMACPP, TokenizeRequest, TokenizeBody),
    Endpoint("POST", "/detokenize", detokenize, LLAMACPP, DetokenizeRequest, DetokenizeBody),
    Endpoint("POST", "/apply-template", apply_template, LLAMACPP, ChatRequest, TemplateBody),
    Endpoint("GET", "/props", show_props, LLAMACPP),
    Endpoint("POST", "/props", change_props, LLAMACPP),
    Endpoint("GET", "/slots", show_slots, LLAMACPP, query=("fail_on_no_slot",)),
    Endpoint("*", "/tools", disabled, LLAMACPP, is_disabled=True),
    Endpoint("*", "/cors-proxy", disabled, LLAMACPP, is_disabled=True),
)
