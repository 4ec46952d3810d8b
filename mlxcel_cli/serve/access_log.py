"""Tells each request on stderr: as a line, as a JSON object, or not at all."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from mlxcel_cli.output import printable
from mlxcel_cli.serve.server import REQUEST_ID, Server


def access_logger(note: Callable[[str], None], server: Server) -> type[AbstractAccessLogger]:
    """A class for aiohttp that writes with ``note``.

    Paths are told without their query, which may hold what is nobody's business.
    """

    class AccessLogger(AbstractAccessLogger):
        def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
            # A request that was no HTTP has no application to ask.
            form = server.settings.access_log
            if form == "off":
                return
            entry = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "remote": request.remote or "unix",
                "method": request.method,
                "path": request.path,
                "status": response.status,
                "bytes": response.body_length,
                "ms": round(time * 1000, 1),
                "request_id": request.get(REQUEST_ID, ""),
            }
            line = " ".join(map(str, entry.values()))
            note(json.dumps(entry) if form == "json" else printable(line))

    return AccessLogger
