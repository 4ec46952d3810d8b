"""Which exit status each failure gets: the one table of the command line's border."""

import re
from enum import IntEnum

from engine.errors import (
    BackendMissing,
    ContextOverflow,
    EngineClosed,
    EngineError,
    InvalidParams,
    KvBudgetExceeded,
    MemoryShort,
    ModelError,
    ModelFileError,
    ModelNotFound,
    PullFailed,
    QueueFull,
    RowError,
    SnapshotError,
    TemplateError,
    UnsupportedModel,
)
from mlxcel_cli.signals import ReaderGone


class ExitCode(IntEnum):
    """Exit statuses of ``mlxcel``; `docs/exit-codes.md` is generated from these lines."""

    meaning: str
    """What it says, in a sentence."""

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        """A status that knows its meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "The command did what was asked."
    FAILED = (
        1,
        "Something unforeseen (`MLXCEL_DEBUG=1` shows it), or variants of `parity` that disagree.",
    )
    USAGE = 2, "An option, argument, setting or value is wrong; nothing was started."
    MODEL_NOT_FOUND = 3, "No model goes by that name; the message says what to type next."
    MODEL_FILE = 4, "A model's file is missing, truncated, corrupt or not what it claims to be."
    MODEL_UNSUPPORTED = 5, "A sound model of a kind that cannot run here."
    PULL_FAILED = 6, "A download did not finish; what arrived is kept and resumed."
    CONTEXT_OVERFLOW = 7, "The prompt does not fit the context."
    MEMORY = 8, "Weights and KV would not fit this machine; `--force` tries anyway."
    BACKEND = 9, "MLX has no backend to run on."
    TEMPLATE = 10, "The chat template is broken or refused the messages."
    GENERATION = 11, "The answer broke off: the backend failed while it computed."
    STORAGE = 12, "A file could not be read or written: a full disk, a missing permission."
    HUNG_UP = 129, "SIGHUP: the terminal was closed."
    INTERRUPTED = 130, "Ctrl-C (SIGINT); what was written stays."
    BROKEN_PIPE = 141, "The reader of stdout went away (`| head -1`), as after any SIGPIPE."
    TERMINATED = 143, "SIGTERM; what was written stays."


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (InvalidParams, ExitCode.USAGE),
    (ContextOverflow, ExitCode.CONTEXT_OVERFLOW),
    (ModelNotFound, ExitCode.MODEL_NOT_FOUND),
    (ModelFileError, ExitCode.MODEL_FILE),
    (PullFailed, ExitCode.PULL_FAILED),
    (UnsupportedModel, ExitCode.MODEL_UNSUPPORTED),
    (ModelError, ExitCode.MODEL_UNSUPPORTED),
    (TemplateError, ExitCode.TEMPLATE),
    (BackendMissing, ExitCode.BACKEND),
    (MemoryShort, ExitCode.MEMORY),
    (MemoryError, ExitCode.MEMORY),
    (KvBudgetExceeded, ExitCode.MEMORY),
    (QueueFull, ExitCode.GENERATION),
    (EngineClosed, ExitCode.GENERATION),
    (RowError, ExitCode.GENERATION),
    (SnapshotError, ExitCode.STORAGE),
    (EngineError, ExitCode.FAILED),
    (ReaderGone, ExitCode.BROKEN_PIPE),
    (BrokenPipeError, ExitCode.BROKEN_PIPE),
    (ConnectionError, ExitCode.GENERATION),
    (OSError, ExitCode.STORAGE),
    (BaseException, ExitCode.FAILED),
)


def exit_code(error: BaseException) -> ExitCode:
    """The first matching row of the table; the last row matches everything.

    A model's file that the operating system would not read or write is no broken model.
    """
    if isinstance(error, ModelFileError) and isinstance(error.__cause__, OSError):
        return ExitCode.STORAGE
    return next(code for kind, code in _CODES if isinstance(error, kind))


def error_type(error: BaseException) -> str:
    """The error's name for JSON: ``ModelNotFound`` gives ``model_not_found``.

    Only EngineErrors are named; whatever else happens is an ``internal_error``, or a
    ``storage_error`` when the operating system refused.
    """
    if isinstance(error, EngineError):
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return "storage_error" if isinstance(error, OSError) else "internal_error"
