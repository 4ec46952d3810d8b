"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from aiohttp import web

from mlxcel_cli.serve.answering import json_response
from mlxcel_cli.serve.schema.responses import ModelEntry, ModelList, ModelMeta
from mlxcel_cli.serve.server import SERVER, Server


async def list_models(request: web.Request) -> web.Response:
    """The model that is served."""
    return json_response(ModelList([_entry(request.app[SERVER])]))


async def one_model(request: web.Request) -> web.Response:
    """The model of a name, if it is served."""
    server = request.app[SERVER]
    server.require_name(request.match_info["model"], server.worker.ready_model())
    return json_response(_entry(server))


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
