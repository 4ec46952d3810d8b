"""What a user sees when something fails: one line, with what to do next."""

import traceback
from typing import Any

import typer

from engine.errors import EngineError, InvalidParams
from engine.params import SAMPLING_FIELDS
from mlxcel_cli.exit_codes import error_type
from mlxcel_cli.options import LengthOptions, ModelOptions, OutputOptions, PromptOptions
from mlxcel_cli.signals import ReaderGone

PROGRAM = "mlxcel"


def failure_text(error: BaseException) -> str:
    """One line for an error that is no usage error; empty for a reader that went away."""
    if isinstance(error, ReaderGone | BrokenPipeError):
        return ""
    if isinstance(error, InvalidParams):
        return f"{_as_option(error.field)}: {error.problem}"
    if isinstance(error, EngineError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return f"{error.filename}: {reason}" if error.filename else reason
    if isinstance(error, MemoryError):
        return "memory ran out; a smaller model or --ctx-size needs less"
    return (
        f"internal error: {type(error).__name__}: {error} "
        "(set MLXCEL_DEBUG=1 to see the traceback, and please report it)"
    )


def error_object(error: BaseException) -> dict[str, object]:
    """What ``--json`` writes in place of a result."""
    if isinstance(error, _usage_error()):
        usage: Any = error
        fault = {"type": error_type(InvalidParams("", "")), "message": str(usage.format_message())}
    else:
        fault = {"type": error_type(error), "message": failure_text(error)}
    return {"type": "error", "error": fault}


def usage_text(error: BaseException) -> str | None:
    """The message for a command line that does not parse; None for any other error."""
    if not isinstance(error, _usage_error()):
        return None
    usage: Any = error
    if type(usage).__name__ == "NoArgsIsHelpError":
        return str(usage.format_message())
    command = usage.ctx.command_path if usage.ctx is not None else PROGRAM
    return f"{command}: {usage.format_message()}\nTry '{command} --help'."


def traceback_text(error: BaseException) -> str:
    """The error's traceback, without the final newline."""
    return "".join(traceback.format_exception(error)).rstrip("\n")


def _usage_error() -> type[BaseException]:
    """Typer's base of all usage errors, which it does not name publicly."""
    return typer.BadParameter.__mro__[1]


def _as_option(field: str) -> str:
    """``top_p`` as the command line spells it; what is no option stays as it is."""
    groups = (PromptOptions, ModelOptions, LengthOptions, OutputOptions)
    spelt = {"context_tokens": "--ctx-size"} | {one.name: one.option for one in SAMPLING_FIELDS}
    if field in spelt:
        return spelt[field]
    if field != "prompt" and any(field in group.__dataclass_fields__ for group in groups):
        return "--" + field.replace("_", "-")
    return field
