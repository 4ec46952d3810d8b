"""Sends log records of warnings and errors to stderr, through the one writer to it."""

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

CLIENT_FAULTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""What aiohttp raises for bytes that are no HTTP, broken bodies and clients that are gone."""


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
    """Whether a record tells of what a client did wrong.

    aiohttp reports them as errors with a traceback, so that any stranger could fill the log.
    """
    error = record.exc_info[1] if record.exc_info else None
    return record.name == "aiohttp.server" and isinstance(error, CLIENT_FAULTS)
