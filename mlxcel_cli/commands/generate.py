"""``mlxcel generate``: one answer for scripts and pipes."""

from mlxcel_cli.command_lines import GenerateCommand
from mlxcel_cli.option_groups import takes_groups

EXAMPLES = """
Examples:
  mlxcel generate "Write one short sentence about the sea."
  git diff | mlxcel generate "Write a commit message for this change:"
  mlxcel generate -m qwen3 -n 200 --temperature 0.7 --seed 7 -f question.txt
  mlxcel generate --json --messages conversation.json
  mlxcel generate --prompt-lookup -f function.py "Rename total to amount."

Settings come from the command line, else from MLXCEL_* variables, else from the options file
(docs/configuration.md). Without any, the most likely token is taken each time (--temperature 0):
the model's own generation_config counts for chat and serve only.
Exit statuses: docs/exit-codes.md.
"""


@takes_groups
def generate(command: GenerateCommand) -> int:
    """Write one answer to stdout.

    The answer is streamed to stdout, everything else goes to stderr. A file (--file) is put after
    the prompt, and text from a pipe after both.
    """
    # Imported here: --help must not load the engine.
    from mlxcel_cli.generation import generate_once

    return generate_once(command)
