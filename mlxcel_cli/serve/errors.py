"""Which HTTP status each failure gets: the one table of the server's border."""

from dataclasses import dataclass
from http import HTTPStatus

from engine.errors import (
    BackendMissing,
    ContextOverflow,
    EngineClosed,
    EngineError,
    EngineUnhealthy,
    InvalidParams,
    KvBudgetExceeded,
    MemoryShort,
    ModelError,
    ModelNotFound,
    QueueFull,
    RowError,
    SnapshotError,
    TemplateError,
    UnknownSequence,
)

RETRY_AFTER_S = 1
"""Seconds after which a client that was sent away may retry: by then a slot is usually free."""
MESSAGE_CHARACTERS = 1000
"""Longest message: many quote what the client wrote, which may be megabytes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """How a kind of error looks to a client."""

    status: HTTPStatus
    kind: str
    """OpenAI's ``type``."""
    code: str | None = None
    """OpenAI's ``code``."""


INVALID = "invalid_request_error"
SERVER = "server_error"
UNAVAILABLE = "unavailable_error"
NOT_SUPPORTED = "not_supported_error"
"""llama.cpp's ``type`` for what this server or model has not."""

_FAULTS: tuple[tuple[type[Exception], Fault], ...] = (
    (InvalidParams, Fault(HTTPStatus.BAD_REQUEST, INVALID, "invalid_value")),
    (ContextOverflow, Fault(HTTPStatus.BAD_REQUEST, INVALID, "context_length_exceeded")),
    (KvBudgetExceeded, Fault(HTTPStatus.BAD_REQUEST, INVALID, "kv_budget_exceeded")),
    (TemplateError, Fault(HTTPStatus.BAD_REQUEST, INVALID, "template_error")),
    (ModelNotFound, Fault(HTTPStatus.NOT_FOUND, INVALID, "model_not_found")),
    (QueueFull, Fault(HTTPStatus.SERVICE_UNAVAILABLE, "server_busy", "queue_full")),
    (EngineUnhealthy, Fault(HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE, "engine_unhealthy")),
    (EngineClosed, Fault(HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE, "engine_closed")),
    (MemoryShort, Fault(HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE, "memory_short")),
    (BackendMissing, Fault(HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE, "backend_missing")),
    (RowError, Fault(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER, "generation_error")),
    (ModelError, Fault(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER, "model_error")),
    (SnapshotError, Fault(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER, "snapshot_error")),
    (UnknownSequence, Fault(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER, "internal_error")),
    # Our own calls are shallow: what is deep came in a request, for a chat template to walk.
    (RecursionError, Fault(HTTPStatus.BAD_REQUEST, INVALID, "invalid_value")),
)
_FIELDS = {"stop_ids": "stop_token_ids"}
"""The engine's names of fields that bodies call otherwise."""
_UNFORESEEN = Fault(HTTPStatus.INTERNAL_SERVER_ERROR, SERVER, "internal_error")
_TRY_AGAIN = frozenset({"queue_full", "engine_closed", "memory_short", "loading"})


class ApiError(Exception):
    """A failure as a client sees it.

    Args:
        status: the HTTP status, where it is not too late for one.
        message: for people.
        kind: OpenAI's ``type``.
        code: OpenAI's ``code``.
        param: the field at fault.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _shortened(message)
        self.kind = kind
        self.code = code
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After``, when a later try may do."""
        return {"Retry-After": str(RETRY_AFTER_S)} if self.code in _TRY_AGAIN else {}


def api_error(error: BaseException) -> ApiError:
    """The first matching row of the table; whatever else happens is an internal error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidParams) and error.field in _FIELDS:
        error = InvalidParams(_FIELDS[error.field], error.problem)
    fault = next((row for kind, row in _FAULTS if isinstance(error, kind)), _UNFORESEEN)
    return ApiError(
        fault.status,
        _message(error),
        kind=fault.kind,
        code=fault.code,
        param=error.field if isinstance(error, InvalidParams) else None,
    )


def _shortened(message: str) -> str:
    if len(message) <= MESSAGE_CHARACTERS:
        return message
    half = MESSAGE_CHARACTERS // 2
    return f"{message[:half]} … {message[-half:]}"


def _message(error: BaseException) -> str:
    if isinstance(error, QueueFull):
        return f"All slots are busy. Please try again later. ({error})"
    if isinstance(error, RowError):
        return f"Generation error: {error}"
    if isinstance(error, RecursionError):
        return "The request is nested too deeply."
    if isinstance(error, EngineError):
        return str(error)
    return "The server met an error of its own; its log has the details."


def loading_error() -> ApiError:
    """The error of every request while the model loads."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE, "Loading model", kind=UNAVAILABLE, code="loading"
    )
