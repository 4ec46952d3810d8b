"""Pages about the prompt cache: what it holds, and emptying it."""

from dataclasses import asdict

from aiohttp import web

from mlxcel_cli.serve.answering import json_response
from mlxcel_cli.serve.server import SERVER


async def cache_stats(request: web.Request) -> web.Response:
    """What the prompt cache holds and how often it helped."""
    stats = request.app[SERVER].worker.stats
    if stats is None or stats.cache is None:
        return json_response({"enabled": False})
    held, counters = stats.cache, stats.cache.counters
    return json_response(
        {
            "enabled": True,
            "entries": held.entries,
            "tokens": held.tokens,
            "bytes": held.nbytes,
            "pending": held.pending,
            "files": held.disk_entries,
            "file_bytes": held.disk_bytes,
            "file_faults": held.disk_faults,
            "limits": asdict(held.limits) | {"folder": str(held.limits.folder or "") or None},
            "hit_rate": round(counters.hits / counters.lookups, 4) if counters.lookups else 0.0,
            **asdict(counters),
        }
    )


async def cache_reset(request: web.Request) -> web.Response:
    """Empty the prompt cache; answers that run are not disturbed."""
    request.app[SERVER].worker.forget_prompts()
    return json_response({"status": "ok"})
