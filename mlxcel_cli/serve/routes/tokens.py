"""Endpoints about text and tokens: nothing here asks the model."""

from collections.abc import Sequence

from aiohttp import web

from mlxcel_cli.serve.answering import json_response
from mlxcel_cli.serve.asking import Prompt, chat_prompt
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.native_asking import mixed_ids
from mlxcel_cli.serve.schema.fields import parse_body
from mlxcel_cli.serve.schema.native import (
    TOKENS,
    DetokenizeBody,
    DetokenizeRequest,
    InputTokensBody,
    TemplateBody,
    TokenizeBody,
    TokenizeRequest,
    TokenPiece,
)
from mlxcel_cli.serve.schema.requests import ChatRequest
from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.server import SERVER


async def tokenize(request: web.Request) -> web.Response:
    """The tokens of a text, or of texts and the token ids between them."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, TokenizeRequest, TOKENS)
    model = server.worker.ready_model()
    return json_response(await server.text_work(lambda: _tokenized(body, model), len(raw)))


async def detokenize(request: web.Request) -> web.Response:
    """The text of tokens."""
    server = request.app[SERVER]
    raw = await read_body(request)
    body = parse_body(raw, DetokenizeRequest, TOKENS)
    model = server.worker.ready_model()
    text = await server.text_work(lambda: _detokenized(body.tokens, model), len(raw))
    return json_response(text)


async def apply_template(request: web.Request) -> web.Response:
    """A conversation as the model reads it."""
    return json_response(TemplateBody((await _chat_prompt(request)).text))


async def input_tokens(request: web.Request) -> web.Response:
    """How many tokens a conversation is, by the same path as an answer to it."""
    return json_response(InputTokensBody(len((await _chat_prompt(request)).ids)))


async def _chat_prompt(request: web.Request) -> Prompt:
    server = request.app[SERVER]
    raw = await read_body(request)
    chat = parse_body(raw, ChatRequest)
    model = server.worker.ready_model()
    server.require_name(chat.model, model)
    return await server.text_work(lambda: chat_prompt(chat, model, must_fit=False), len(raw))


def _tokenized(body: TokenizeRequest, model: ServedModel) -> TokenizeBody:
    tokenizer = model.tokenizer
    content = [body.content] if isinstance(body.content, str) else body.content
    ids = mixed_ids(content, model, field="content", parse_special=body.parse_special)
    bos = tokenizer.bos_id
    if body.add_special and tokenizer.adds_bos and bos is not None and ids[:1] != (bos,):
        ids = (bos, *ids)
    if not body.with_pieces:
        return TokenizeBody(list(ids))
    return TokenizeBody([TokenPiece(one, _piece(tokenizer.piece_bytes(one))) for one in ids])


def _detokenized(tokens: Sequence[int], model: ServedModel) -> DetokenizeBody:
    ids = mixed_ids(tokens, model, field="tokens", parse_special=False)
    return DetokenizeBody(model.tokenizer.decode(ids, skip_special=False))


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
