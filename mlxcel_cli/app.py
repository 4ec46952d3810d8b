"""Runs ``mlxcel``: signals, and the one place where errors become an exit status.

Imports little, so that Ctrl-C ends it in order as soon as can be.
"""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from typing import NoReturn

from mlxcel_cli.exit_codes import ExitCode, exit_code
from mlxcel_cli.signals import Interrupted, StopSignals

PROGRAM = "mlxcel"
LAST_STANDARD_DESCRIPTOR = 2
LAST_WAIT_S = 0.5
"""How long an interrupted program waits for its engine thread to end in order."""


def main() -> NoReturn:
    """Run the command line and end the process."""
    _main(sys.argv[1:])


def serve_main() -> NoReturn:
    """``mlxcel-server`` is ``mlxcel serve``."""
    _main(["serve", *sys.argv[1:]])


def _main(arguments: list[str]) -> NoReturn:
    signals = StopSignals()
    try:
        signals.install()
        _fill_descriptors()
        code = run(arguments)
        signals.end_at_once()
    except Interrupted as stop:
        code = stop.exit_code
        _report("terminated" if code == ExitCode.TERMINATED else "interrupted")
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        _report("interrupted")
    _end(code)


def run(arguments: list[str]) -> int:
    """Run one command; what it raises becomes a line on stderr and an exit status.

    Raises:
        Interrupted: passed on; it ends the process, not the command.
    """
    from mlxcel_cli.command_tree import command_tree

    try:
        result = command_tree().main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - reported, and never swallowed
        return _fail(error, as_json="--json" in takewhile(lambda word: word != "--", arguments))
    return result if isinstance(result, int) else ExitCode.OK


def _fill_descriptors() -> None:
    """Give a closed stdin, stdout or stderr to ``/dev/null``.

    Else the next file that is opened takes its number: what a library writes to stdout would go
    into a model, and MLX takes a file with the number 0 for one that failed to open.
    """
    with suppress(OSError):
        while (lowest := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD_DESCRIPTOR:
            pass
        os.close(lowest)


def _fail(error: Exception, *, as_json: bool) -> int:
    from mlxcel_cli.config import debug_asked
    from mlxcel_cli.failures import error_object, failure_text, traceback_text, usage_text

    if debug_asked(os.environ):
        _write(traceback_text(error))
    usage = usage_text(error)
    if as_json and _write_object(error_object(error)):
        return ExitCode.USAGE if usage is not None else exit_code(error)
    if usage is not None:
        _write(usage)
        return ExitCode.USAGE
    if text := failure_text(error):
        _report(text)
    return exit_code(error)


def _write_object(fault: Mapping[str, object]) -> bool:
    """Write an error's JSON to stdout; False leaves it to stderr."""
    from mlxcel_cli.output import standard_output
    from mlxcel_cli.signals import ReaderGone

    try:
        standard_output(os.environ).json_line(fault)
    except (OSError, ValueError, ReaderGone):
        return False
    return True


def _report(text: str) -> None:
    from mlxcel_cli.output import printable

    _write(f"{PROGRAM}: {printable(text)}")


def _write(text: str) -> None:
    from mlxcel_cli.plain_text import visible

    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(visible(text) + "\n")
            sys.stderr.flush()


def _end(code: int) -> NoReturn:
    """Leave the process, at once if an engine thread is still inside MLX.

    The interpreter's own end, with another thread in MLX, may abort the process.
    """
    from mlxcel_cli.engine_thread import ENGINE_THREAD_NAME

    for thread in threading.enumerate():
        if thread.name == ENGINE_THREAD_NAME:
            thread.join(LAST_WAIT_S)
    busy = any(thread.name == ENGINE_THREAD_NAME for thread in threading.enumerate())
    code = _flush(code)
    if busy:
        os._exit(code)
    sys.exit(code)


def _flush(code: int) -> int:
    from mlxcel_cli.output import abandon_stdout

    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        abandon_stdout()
        return code or exit_code(error)
    return code
