"""llama.cpp's pages about the server: properties, slots, and what is disabled."""

import zlib
from http import HTTPStatus
from typing import Any

from aiohttp import web

from engine.params import SamplingParams
from engine.scheduler.stats import SlotStats
from mlxcel_cli.serve.api import json_response
from mlxcel_cli.serve.errors import NOT_SUPPORTED, UNAVAILABLE, ApiError
from mlxcel_cli.serve.generation import default_sampling
from mlxcel_cli.serve.llamacpp.request import infill_marks
from mlxcel_cli.serve.llamacpp.settings import sampling_settings
from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.server import SERVER, Server
from mlxcel_cli.serve.worker import ServerPhase

NO_TASK = -1


async def show_props(request: web.Request) -> web.Response:
    """What the model and the server are."""
    server = request.app[SERVER]
    model = server.worker.ready_model()
    facts, settings, template = model.facts, server.settings, model.template
    tokenizer = model.tokenizer
    return json_response(
        {
            "default_generation_settings": {
                "params": _default_params(server, model),
                "n_ctx": model.context_tokens,
            },
            "total_slots": settings.slots,
            "model_alias": server.names(model)[0],
            "model_path": str(facts.path),
            "modalities": {"vision": False, "audio": False},
            "chat_template": "" if template is None else template.source,
            "chat_template_caps": _template_caps(model),
            "bos_token": tokenizer.bos_text,
            "eos_token": tokenizer.eos_text,
            "build_info": server.fingerprint,
            "is_sleeping": server.worker.phase is ServerPhase.ASLEEP,
            "endpoint_slots": settings.endpoint_slots,
            "endpoint_props": settings.endpoint_props,
            "endpoint_metrics": True,
            "speculative": settings.speculation is not None,
            "geometry": {
                "family": facts.family,
                "layers": facts.layers,
                "vocab_size": facts.vocab_size,
                "n_ctx_train": facts.context_tokens,
                "weight_bytes": facts.weight_bytes,
                "kv_bytes_per_token": facts.kv_bytes_per_token,
            },
            "capabilities": {
                "chat": template is not None,
                "reasoning": bool(model.thinking_marks),
                "infill": infill_marks(tokenizer) is not None,
                "tools": False,
                "prompt_cache": settings.prompt_cache,
            },
            "kv_cache_mode": model.kv_kind,
        }
    )


async def change_props(request: web.Request) -> web.Response:
    """Taken where ``--props`` allows it; there is nothing that it could change."""
    if not request.app[SERVER].settings.endpoint_props:
        raise ApiError(
            HTTPStatus.NOT_IMPLEMENTED,
            "This server does not take changes of its properties; start it with --props.",
            kind=NOT_SUPPORTED,
        )
    return json_response({"success": True})


async def show_slots(request: web.Request) -> web.Response:
    """What each slot does; ``fail_on_no_slot`` asks whether one is free."""
    server = request.app[SERVER]
    if not server.settings.endpoint_slots:
        raise ApiError(
            HTTPStatus.NOT_IMPLEMENTED,
            "This server does not show its slots; start it without --no-slots.",
            kind=NOT_SUPPORTED,
        )
    model = server.worker.ready_model()
    stats = server.worker.stats
    busy = {} if stats is None else {one.slot: one for one in stats.slots}
    asks_for_room = request.query.get("fail_on_no_slot", "") not in ("", "0", "false")
    if asks_for_room and len(busy) >= server.settings.slots:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no slot available", kind=UNAVAILABLE)
    slots = range(server.settings.slots)
    drafts = server.settings.speculation is not None
    return json_response([_slot(slot, busy.get(slot), model, drafts=drafts) for slot in slots])


async def disabled(_: web.Request) -> web.Response:
    """Endpoints of llama.cpp that reach out of the server: disabled here."""
    raise ApiError(HTTPStatus.FORBIDDEN, "this feature is disabled", kind="feature_disabled")


def _slot(slot: int, job: SlotStats | None, model: ServedModel, *, drafts: bool) -> dict[str, Any]:
    """A slot without its texts: they are private."""
    common: dict[str, Any] = {
        "id": slot,
        "n_ctx": model.context_tokens,
        "speculative": drafts,
        "is_processing": job is not None,
    }
    if job is None:
        return common | {
            "id_task": NO_TASK,
            "n_prompt_tokens": 0,
            "n_prompt_tokens_processed": 0,
            "n_prompt_tokens_cache": 0,
            "params": {},
            "next_token": [],
        }
    # The prompt's last token is forwarded by the step that writes the answer's first.
    read = job.prompt_tokens if job.completion_tokens else job.prompt_done_tokens
    bound = -1 if job.max_tokens is None else job.max_tokens
    left = -1 if job.max_tokens is None else job.max_tokens - job.completion_tokens
    return common | {
        # llama.cpp's are numbers; this one stays the same while the answer runs.
        "id_task": zlib.crc32(job.id.encode()) & 0x7FFFFFFF,
        "n_prompt_tokens": job.prompt_tokens,
        "n_prompt_tokens_processed": max(0, read - job.cached_tokens),
        "n_prompt_tokens_cache": job.cached_tokens,
        "params": {"n_predict": bound, "priority": job.priority.name.lower()},
        "next_token": [
            {
                "has_next_token": not job.is_paused,
                "n_remain": left,
                "n_decoded": job.completion_tokens,
            }
        ],
    }


def _default_params(server: Server, model: ServedModel) -> dict[str, Any]:
    sampling: SamplingParams = default_sampling(model, server.defaults)
    bound = server.defaults.max_tokens
    return sampling_settings(sampling) | {"n_predict": -1 if bound is None else bound}


def _template_caps(model: ServedModel) -> dict[str, bool]:
    return {
        # A template without a system role gets its text with the next user turn.
        "supports_system_role": model.template is not None,
        "supports_reasoning": bool(model.thinking_marks),
        "supports_tools": False,
        "supports_tool_calls": False,
        "supports_parallel_tool_calls": False,
    }
