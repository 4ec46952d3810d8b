"""The first lines of ``mlxcel`` that run: from here on Ctrl-C shows no traceback.

Python's own handler would show one while the program is still being imported. Once it is,
`mlxcel_cli.signals` takes over.
"""

import signal


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
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
