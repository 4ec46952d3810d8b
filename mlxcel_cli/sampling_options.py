"""The options that choose the next token, shared by every command that writes text."""

from dataclasses import dataclass
from typing import Annotated

import typer

SAMPLING = "Sampling"
PENALTIES = "Penalties"
RARE_SAMPLERS = "Samplers for special cases"


Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", rich_help_panel=SAMPLING,
        help="The same seed gives the same answer; -1 draws one. --stats and --json tell it.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the next token is chosen; field names are those of ``SamplingParams``."""

    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", "-t", "--temp", metavar="T", rich_help_panel=SAMPLING,
            help="Higher is more surprising; 0 always takes the most likely token.",
        ),
    ] = None  # fmt: skip
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", metavar="N", rich_help_panel=SAMPLING,
            help="Choose among the N most likely tokens; 0 is off.",
        ),
    ] = None  # fmt: skip
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", metavar="P", rich_help_panel=SAMPLING,
            help="Choose among the likeliest tokens that together reach P; 1 is off.",
        ),
    ] = None  # fmt: skip
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p", metavar="P", rich_help_panel=SAMPLING,
            help="Drop tokens less likely than P times the likeliest; 0 is off.",
        ),
    ] = None  # fmt: skip
    seed: Seed = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", metavar="TOKEN=VALUE", rich_help_panel=SAMPLING,
            help='Add VALUE to a token\'s logit; TOKEN is an id or a text in quotes ("yes"=5), '
            "VALUE may be -inf. May be given several times.",
        ),
    ] = None  # fmt: skip
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repetition-penalty", "--repeat-penalty", metavar="X", rich_help_panel=PENALTIES,
            help="Make repeated tokens less likely; 1 is off.",
        ),
    ] = None  # fmt: skip
    repetition_context_size: Annotated[
        int | None,
        typer.Option(
            "--repetition-context-size", "--repeat-last-n", metavar="N",
            rich_help_panel=PENALTIES,
            help="Newest tokens that penalties look at; 0 is off, -1 all. Default: 64.",
        ),
    ] = None  # fmt: skip
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            "--frequency-penalty", metavar="X", rich_help_panel=PENALTIES,
            help="Subtract X for each time a token was written; 0 is off.",
        ),
    ] = None  # fmt: skip
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            "--presence-penalty", metavar="X", rich_help_panel=PENALTIES,
            help="Subtract X once from a token that was written; 0 is off.",
        ),
    ] = None  # fmt: skip
    dry_multiplier: Annotated[
        float | None,
        typer.Option(
            "--dry-multiplier", metavar="X", rich_help_panel=PENALTIES,
            help="DRY: penalise tokens that would lengthen a repeated passage; 0 is off.",
        ),
    ] = None  # fmt: skip
    dry_base: Annotated[
        float | None,
        typer.Option(
            "--dry-base", metavar="X", rich_help_panel=PENALTIES,
            help="DRY: growth of the penalty with the passage's length. Default: 1.75.",
        ),
    ] = None  # fmt: skip
    dry_allowed_length: Annotated[
        int | None,
        typer.Option(
            "--dry-allowed-length", metavar="N", rich_help_panel=PENALTIES,
            help="DRY: shorter passages may repeat. Default: 2.",
        ),
    ] = None  # fmt: skip
    dry_penalty_last_n: Annotated[
        int | None,
        typer.Option(
            "--dry-penalty-last-n", metavar="N", rich_help_panel=PENALTIES,
            help="DRY: newest tokens it looks at; 0 is off, -1 all. Default: 64.",
        ),
    ] = None  # fmt: skip
    dry_sequence_breakers: Annotated[
        list[str] | None,
        typer.Option(
            "--dry-sequence-breaker", metavar="TEXT", rich_help_panel=PENALTIES,
            help='DRY: passages end at this text; may be given several times, "none" is no '
            "breaker. Default: newline, colon, double quote and asterisk.",
        ),
    ] = None  # fmt: skip
    typical_p: Annotated[
        float | None,
        typer.Option(
            "--typical-p", "--typical", metavar="P", rich_help_panel=RARE_SAMPLERS,
            help="Choose among tokens of typical surprise that together reach P; 1 is off.",
        ),
    ] = None  # fmt: skip
    top_n_sigma: Annotated[
        float | None,
        typer.Option(
            "--top-n-sigma", metavar="X", rich_help_panel=RARE_SAMPLERS,
            help="Drop tokens more than X standard deviations below the best; 0 is off.",
        ),
    ] = None  # fmt: skip
    min_keep: Annotated[
        int | None,
        typer.Option(
            "--min-keep", metavar="N", rich_help_panel=RARE_SAMPLERS,
            help="Tokens that top-p, min-p and typical-p must leave. Default: 0.",
        ),
    ] = None  # fmt: skip
    xtc_probability: Annotated[
        float | None,
        typer.Option(
            "--xtc-probability", metavar="P", rich_help_panel=RARE_SAMPLERS,
            help="XTC: how often to drop all but the least likely of the top choices; 0 is off.",
        ),
    ] = None  # fmt: skip
    xtc_threshold: Annotated[
        float | None,
        typer.Option(
            "--xtc-threshold", metavar="P", rich_help_panel=RARE_SAMPLERS,
            help="XTC: what counts as a top choice; above 0.5 XTC does nothing. Default: 0.1.",
        ),
    ] = None  # fmt: skip
    mirostat: Annotated[
        int | None,
        typer.Option(
            "--mirostat", metavar="0|1|2", rich_help_panel=RARE_SAMPLERS,
            help="Steer the surprise of the text instead of cutting choices off; 0 is off.",
        ),
    ] = None  # fmt: skip
    mirostat_tau: Annotated[
        float | None,
        typer.Option(
            "--mirostat-tau", "--mirostat-ent", metavar="X", rich_help_panel=RARE_SAMPLERS,
            help="Mirostat: the surprise aimed at. Default: 5.",
        ),
    ] = None  # fmt: skip
    mirostat_eta: Annotated[
        float | None,
        typer.Option(
            "--mirostat-eta", "--mirostat-lr", metavar="X", rich_help_panel=RARE_SAMPLERS,
            help="Mirostat: how fast it corrects. Default: 0.1.",
        ),
    ] = None  # fmt: skip
    dynatemp_range: Annotated[
        float | None,
        typer.Option(
            "--dynatemp-range", metavar="X", rich_help_panel=RARE_SAMPLERS,
            help="Let the temperature follow the model's doubt, this far up and down; 0 is off.",
        ),
    ] = None  # fmt: skip
    dynatemp_exponent: Annotated[
        float | None,
        typer.Option(
            "--dynatemp-exponent", "--dynatemp-exp", metavar="X", rich_help_panel=RARE_SAMPLERS,
            help="Dynamic temperature: how sharply it follows. Default: 1.",
        ),
    ] = None  # fmt: skip
