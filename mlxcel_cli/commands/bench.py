"""``mlxcel bench``: what a model does on this machine, in figures."""

from mlxcel_cli.command_lines import LookupBenchCommand, WidthsCommand
from mlxcel_cli.help_text import PLAIN_COMMAND, plain_typer
from mlxcel_cli.option_groups import takes_groups

WIDTH_EXAMPLES = """
Examples:
  mlxcel bench verify-width
  mlxcel bench verify-width ./my-model --max-draft 15 --json
  mlxcel bench verify-width --plot widths.svg

What prompt lookup's policy auto knows about this machine is what this command measured last, else
what the first answer with --prompt-lookup measured.
"""

LOOKUP_EXAMPLES = """
Examples:
  mlxcel bench lookup
  mlxcel bench lookup ./my-model -n 200 --repeats 5
  mlxcel bench lookup --json --plot lookup.svg | jq 'select(.type == "summary")'

Three tasks copy a text with edits, two write freely. What the columns mean: docs/prompt-lookup.md.
"""


bench_app = plain_typer("Measure a model on this machine.")


@bench_app.command("verify-width", epilog=WIDTH_EXAMPLES, **PLAIN_COMMAND)
@takes_groups
def verify_width(command: WidthsCommand) -> None:
    """Measure what a forward over several tokens costs, in one-token steps."""
    # Imported here: --help must not load the engine.
    from mlxcel_cli.bench.run import bench_widths

    bench_widths(command)


@bench_app.command("lookup", epilog=LOOKUP_EXAMPLES, **PLAIN_COMMAND)
@takes_groups
def lookup(command: LookupBenchCommand) -> None:
    """Compare prompt lookup with plain decoding on five tasks, run in turn."""
    from mlxcel_cli.bench.run import bench_lookup

    bench_lookup(command)
