"""``mlxcel bench``: what a model does on this machine, in figures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mlxcel_cli.help_text import CONTEXT_SETTINGS, PlainCommand, plain_typer
from mlxcel_cli.lookup_options import lookup_help
from mlxcel_cli.option_groups import takes_groups
from mlxcel_cli.options import Config, Json, MaxTokens, ModelOptions, complete_models

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

MEASUREMENT = "Measurement"

ModelWord = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        autocompletion=complete_models,
        help="The model, as --model names it. Default: the options file's, else the starter.",
    ),
]
MaxDraft = Annotated[
    int | None,
    typer.Option(
        "--max-draft", metavar="N", rich_help_panel=MEASUREMENT,
        help=lookup_help("max_draft"),
    ),
]  # fmt: skip
Repeats = Annotated[
    int | None,
    typer.Option(
        "--repeats", metavar="N", rich_help_panel=MEASUREMENT,
        help="How often each thing is measured. Default: 40 forwards, 3 answers.",
    ),
]  # fmt: skip
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", rich_help_panel=MEASUREMENT,
        help="Write the figures as bars to an SVG file.",
    ),
]  # fmt: skip


@takes_groups
def verify_width(  # noqa: PLR0913 - one parameter an option
    *,
    model: ModelOptions,
    model_word: ModelWord = None,
    max_draft: MaxDraft = None,
    repeats: Repeats = None,
    plot: Plot = None,
    json: Json = None,
    config: Config = None,
) -> None:
    """Measure what a forward over several tokens costs, in one-token steps."""
    # Imported here: --help must not load the engine.
    from mlxcel_cli.bench.run import BenchOptions, bench_widths

    bench_widths(
        BenchOptions(
            model_word=model_word,
            model=model,
            max_draft=max_draft,
            repeats=repeats,
            json=bool(json),
            plot=plot,
            config=config,
        )
    )


@takes_groups
def lookup(  # noqa: PLR0913 - one parameter an option
    *,
    model: ModelOptions,
    model_word: ModelWord = None,
    max_tokens: MaxTokens = None,
    max_draft: MaxDraft = None,
    repeats: Repeats = None,
    plot: Plot = None,
    json: Json = None,
    config: Config = None,
) -> None:
    """Compare prompt lookup with plain decoding on five tasks, run in turn."""
    from mlxcel_cli.bench.run import BenchOptions, bench_lookup

    options = BenchOptions(
        model_word=model_word,
        model=model,
        max_draft=max_draft,
        repeats=repeats,
        json=bool(json),
        plot=plot,
        config=config,
    )
    bench_lookup(options, tokens=max_tokens)


bench_app = plain_typer("Measure a model on this machine.")


def _add(name: str, command: Any, examples: str) -> None:
    bench_app.command(name, cls=PlainCommand, epilog=examples, context_settings=CONTEXT_SETTINGS)(
        command
    )


_add("verify-width", verify_width, WIDTH_EXAMPLES)
_add("lookup", lookup, LOOKUP_EXAMPLES)
