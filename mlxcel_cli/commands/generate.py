"""``mlxcel generate``: one answer for scripts and pipes."""

from typing import Annotated

import typer

from mlxcel_cli.lookup_options import LookupOptions
from mlxcel_cli.option_groups import takes_groups
from mlxcel_cli.options import LengthOptions, ModelOptions, OutputOptions, PromptOptions
from mlxcel_cli.sampling_options import SamplingOptions

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

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PROMPT]...", help="The prompt: words, joined by spaces; - is stdin."),
]


@takes_groups
def generate(  # noqa: PLR0913, PLR0917 - one parameter a group of options
    prompt: PromptOptions,
    model: ModelOptions,
    length: LengthOptions,
    sampling: SamplingOptions,
    lookup: LookupOptions,
    output: OutputOptions,
    words: Words = None,
) -> int:
    """Write one answer to stdout.

    The answer goes to stdout as it comes, everything else to stderr. A file
    (--file) is put after the prompt, and text from a pipe after both.
    """
    # Behind the door stands what --help must not pay for.
    from mlxcel_cli.generation import GenerateOptions, generate_once

    return generate_once(
        GenerateOptions(
            words=tuple(words or ()),
            prompt=prompt,
            model=model,
            length=length,
            sampling=sampling,
            lookup=lookup,
            output=output,
        )
    )
