"""``mlxcel doctor``: what this machine offers, what is chosen, and what would make it better."""

from mlxcel_cli.options import Config, Json

EXAMPLES = """
Examples:
  mlxcel doctor
  mlxcel doctor --json | jq .blas
"""


def doctor(json: Json = None, config: Config = None) -> None:
    """Show versions, device, BLAS and its speed, memory, models and settings in use.

    Warnings name what to type. Nothing is changed, but the CPU's kernels are built if they are
    missing.
    """
    # Imported here: --help must not load the engine.
    import os

    from mlxcel_cli.checkup import examine, report_lines
    from mlxcel_cli.config import load_settings
    from mlxcel_cli.engine_thread import EngineThread
    from mlxcel_cli.output import standard_output
    from mlxcel_cli.paths import options_file

    output = standard_output(os.environ)
    settings = load_settings(os.environ, command="doctor", config=config)
    file = config or options_file(os.environ)
    with EngineThread() as thread:
        checkup = thread.call(lambda: examine(settings, file))
    if json:
        output.json_line(checkup)
        return
    for line in report_lines(checkup):
        output.line(line)
