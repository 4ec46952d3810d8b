"""The first lines of ``mlxcel`` that run: from here on Ctrl-C shows no traceback.

Python's own handler would show one while the program is still being imported. Once it is,
`mlxcel_cli.signals` takes over. `signal` itself builds enums first, for a millisecond in which a
traceback would be shown; `_signal` does not.
"""

from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIGINT,
    default_int_handler,
    getsignal,
    signal,
)


def main() -> None:
    """Run the command line and end the process."""
    _let_ctrl_c_end_it()
    from mlxcel_cli import app

    app.main()


def serve_main() -> None:
    """``mlxcel-server`` is ``mlxcel serve``."""
    _let_ctrl_c_end_it()
    from mlxcel_cli import app

    app.serve_main()


def _let_ctrl_c_end_it() -> None:
    # A shell without job control has SIGINT ignored for what it starts with &.
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, SIG_DFL)
