"""``mlxcel parity``: do all ways to get an answer write the same tokens?"""

from pathlib import Path
from typing import Annotated

import typer

from mlxcel_cli.option_groups import takes_groups
from mlxcel_cli.options import (
    PROMPT,
    Config,
    Json,
    MaxTokens,
    ModelOptions,
    PromptText,
    Raw,
    Verbose,
    complete_models,
)
from mlxcel_cli.sampling_options import Seed

EXAMPLES = """
Examples:
  mlxcel parity
  mlxcel parity ./my-model --cases greedy --variants engine,batch,mlx-lm -n 128
  mlxcel parity qwen3 --prompts prompts.txt --json
  MLXCEL_DETERMINISTIC=1 mlxcel parity --gap 0
  mlxcel parity --teacher-forced

Each variant is compared with the first one. A difference within --gap is a near-tie: it is
shown, and is no failure. Exit status 1: a difference is larger. Variants and cases: docs/parity.md.
"""

COMPARISON = "Comparison"

ModelWord = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        autocompletion=complete_models,
        help="The model, as --model names it. Default: the options file's, else the starter.",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts", metavar="FILE", rich_help_panel=PROMPT,
        help="Read prompts from a UTF-8 text file, one a line. Default without --prompt: two of "
        "its own, a story and a text to copy.",
    ),
]  # fmt: skip
Variants = Annotated[
    str | None,
    typer.Option(
        "--variants", "--arms", metavar="A,B,...", rich_help_panel=COMPARISON,
        help="Which variants; the others are compared with the first one. Default: all.",
    ),
]  # fmt: skip
Cases = Annotated[
    str | None,
    typer.Option(
        "--cases", metavar="A,B,...", rich_help_panel=COMPARISON,
        help="greedy, penalised, seeded. Default: all.",
    ),
]  # fmt: skip
Gap = Annotated[
    float | None,
    typer.Option(
        "--gap", metavar="LOGITS", rich_help_panel=COMPARISON,
        help="Widest distance of two choices that is a near-tie. Default: 0.001 for float32 "
        "weights, 0.05 for float16, 0.5 for bfloat16; 2 with --teacher-forced.",
    ),
]  # fmt: skip
Batch = Annotated[
    int | None,
    typer.Option(
        "--rows", metavar="N", rich_help_panel=COMPARISON,
        help="Rows of the batch variant, the compared one included. Default: 4.",
    ),
]  # fmt: skip
TeacherForced = Annotated[
    bool | None,
    typer.Option(
        "--teacher-forced/--no-teacher-forced", rich_help_panel=COMPARISON,
        help="Instead, compare each token of each variant's greedy answer with what mlx-lm "
        "would have written there.",
    ),
]  # fmt: skip


@takes_groups
def parity(  # noqa: PLR0913 - one parameter an option
    *,
    model: ModelOptions,
    model_word: ModelWord = None,
    prompt: PromptText = None,
    prompts: Prompts = None,
    raw: Raw = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    variants: Variants = None,
    cases: Cases = None,
    batch: Batch = None,
    gap: Gap = None,
    teacher_forced: TeacherForced = None,
    json: Json = None,
    verbose: Verbose = None,
    config: Config = None,
) -> int:
    """Compare the tokens of every way to get an answer.

    The engine alone, in a batch, with prompt lookup, over cached and restored state, and mlx-lm's
    own loop answer the same prompts; where two differ, mlx-lm's logits say by how much.
    """
    # Imported here: --help must not load the engine.
    from mlxcel_cli.parity.plan import ParityOptions
    from mlxcel_cli.parity.run import check_parity

    return check_parity(
        ParityOptions(
            model_word=model_word,
            model=model,
            prompt=prompt,
            prompts=prompts,
            raw=raw,
            max_tokens=max_tokens,
            seed=seed,
            variants=variants,
            cases=cases,
            batch=batch,
            gap=gap,
            teacher_forced=bool(teacher_forced),
            json=bool(json),
            verbose=bool(verbose),
            config=config,
        )
    )
