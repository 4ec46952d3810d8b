"""What the server logs on stderr: each request, and the process's warnings and errors."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import HttpProcessingError

from mlxcel_cli.output import printable
from mlxcel_cli.serve.server import REQUEST_ID, Server

CLIENT_FAULTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""What aiohttp raises for bytes that are no HTTP, broken bodies and clients that are gone."""


def access_logger(note: Callable[[str], None], server: Server) -> type[AbstractAccessLogger]:
    """A class for aiohttp that writes with ``note``.

    Paths are logged without their query, which may hold private data.
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


def log_to(note: Callable[[str], None]) -> None:
    """Write records of the whole process with ``note``, tracebacks included."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _NoteHandler):
            root.removeHandler(handler)
    root.addHandler(_NoteHandler(note))


class _NoteHandler(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self.setFormatter(logging.Formatter("mlxcel: %(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_client_fault(record):
            self._note(self.format(record))


def _is_client_fault(record: logging.LogRecord) -> bool:
    """Whether a record is about something a client did wrong.

    aiohttp reports them as errors with a traceback, so that any stranger could fill the log.
    """
    error = record.exc_info[1] if record.exc_info else None
    return record.name == "aiohttp.server" and isinstance(error, CLIENT_FAULTS)
