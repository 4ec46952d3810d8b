"""The part of the server's settings that is about drafts."""

from dataclasses import dataclass
from typing import Annotated

import typer

from mlxcel_cli.lookup_options import LOOKUP, POLICY
from mlxcel_cli.setting import Change, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Whether a server drafts, and how far."""

    draft_kind: Annotated[
        str | None,
        typer.Option(
            "--draft-kind", metavar="prompt-lookup", rich_help_panel=LOOKUP,
            help="Draft answers from their own prompts and texts, and check several tokens in one "
            "forward. The text stays the same; edits, extracts and code come faster. A request "
            'opts out with "speculative": false. Default: no drafts.',
        ),
        Setting(Change.READ_ONLY, None),
    ] = None  # fmt: skip
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model", metavar="MODEL", rich_help_panel=LOOKUP,
            help="Not supported: drafts need no second model (--draft-kind prompt-lookup).",
        ),
        Setting(Change.READ_ONLY, None),
    ] = None  # fmt: skip
    draft_block_size: Annotated[
        int | None,
        typer.Option(
            "--draft-block-size", metavar="N", rich_help_panel=LOOKUP,
            help="Most tokens of one draft, up to 64. Default: 7.",
        ),
        Setting(Change.READ_ONLY, 7),
    ] = None  # fmt: skip
    prompt_lookup_max_batch: Annotated[
        int | None,
        typer.Option(
            "--prompt-lookup-max-batch", metavar="N", rich_help_panel=LOOKUP,
            help="Most answers at a time with which any is drafted; with more, steps of all of "
            "them together are faster. Default: 4.",
        ),
        Setting(Change.READ_ONLY, 4),
    ] = None  # fmt: skip
    prompt_lookup_policy: Annotated[
        str | None,
        POLICY,
        Setting(Change.READ_ONLY, "auto"),
    ] = None
    spec_type: Annotated[
        str | None,
        typer.Option(
            "--spec-type", metavar="none", rich_help_panel=LOOKUP,
            help="none: no drafts, whatever --draft-kind, environment or options file say.",
        ),
        Setting(Change.READ_ONLY, None),
    ] = None  # fmt: skip
