"""What stands on the command line of each command: its groups of options and its arguments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mlxcel_cli.chat_options import ChatOptions
from mlxcel_cli.lookup_options import LookupOptions, lookup_help
from mlxcel_cli.options import (
    PROMPT,
    Config,
    Json,
    LengthOptions,
    MaxTokens,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    PromptText,
    Raw,
    Verbose,
    complete_models,
)
from mlxcel_cli.sampling_options import SamplingOptions, Seed
from mlxcel_cli.serve_options import ServeOptions

COMPARISON = "Comparison"
MEASUREMENT = "Measurement"

ModelWord = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        autocompletion=complete_models,
        help="The model, as --model names it. Default: the options file's, else the starter.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCommand:
    """``mlxcel generate``."""

    prompt: PromptOptions
    model: ModelOptions
    length: LengthOptions
    sampling: SamplingOptions
    lookup: LookupOptions
    output: OutputOptions
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...", help="The prompt: words, joined by spaces; - is stdin."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCommand:
    """``mlxcel chat``."""

    model: ModelOptions
    chat: ChatOptions
    length: LengthOptions
    sampling: SamplingOptions
    lookup: LookupOptions
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [FILE]...",
            help="A model, as --model takes it; a file is attached to the first message.",
            autocompletion=complete_models,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """``mlxcel serve``."""

    model: ModelOptions
    serve: ServeOptions
    sampling: SamplingOptions
    max_tokens: MaxTokens = None
    verbose: Verbose = None
    config: Config = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementOptions:
    """What the benchmarks of ``mlxcel bench`` share."""

    max_draft: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=MEASUREMENT, help=lookup_help("max_draft")
        ),
    ] = None  # fmt: skip
    repeats: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=MEASUREMENT,
            help="How often each thing is measured. Default: 40 forwards, 3 answers.",
        ),
    ] = None  # fmt: skip
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=MEASUREMENT,
            help="Write the figures as bars to an SVG file.",
        ),
    ] = None  # fmt: skip
    json: Json = None
    config: Config = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthsCommand:
    """``mlxcel bench verify-width``."""

    model: ModelOptions
    model_word: ModelWord = None
    measurement: MeasurementOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupBenchCommand:
    """``mlxcel bench lookup``."""

    model: ModelOptions
    model_word: ModelWord = None
    max_tokens: MaxTokens = None
    measurement: MeasurementOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityCommand:
    """``mlxcel parity``."""

    model: ModelOptions
    model_word: ModelWord = None
    prompt: PromptText = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=PROMPT,
            help="Read prompts from a UTF-8 text file, one a line. Default without --prompt: two "
            "of its own, a story and a list to copy.",
        ),
    ] = None  # fmt: skip
    raw: Raw = None
    max_tokens: MaxTokens = None
    seed: Seed = None
    variants: Annotated[
        str | None,
        typer.Option(
            "--variants", "--arms", metavar="A,B,...", rich_help_panel=COMPARISON,
            help="Which variants; the others are compared with the first one. Default: all.",
        ),
    ] = None  # fmt: skip
    cases: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", rich_help_panel=COMPARISON,
            help="greedy, penalised, seeded. Default: all.",
        ),
    ] = None  # fmt: skip
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=COMPARISON,
            help="Rows of the batch variant, the compared one included. Default: 4.",
        ),
    ] = None  # fmt: skip
    gap: Annotated[
        float | None,
        typer.Option(
            metavar="LOGITS", rich_help_panel=COMPARISON,
            help="Widest distance of two choices that is a near-tie. Default: 0.001 for float32 "
            "weights, 0.05 for float16, 0.5 for bfloat16; 2 with --teacher-forced.",
        ),
    ] = None  # fmt: skip
    teacher_forced: Annotated[
        bool | None,
        typer.Option(
            "--teacher-forced/--no-teacher-forced", rich_help_panel=COMPARISON,
            help="Instead, compare each token of each variant's greedy answer with what mlx-lm "
            "would have written there.",
        ),
    ] = None  # fmt: skip
    json: Json = None
    verbose: Verbose = None
    config: Config = None
