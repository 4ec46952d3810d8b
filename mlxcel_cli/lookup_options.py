"""The options of prompt lookup, and what the engine takes for them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.errors import InvalidParams
from engine.params import (
    MAX_DRAFT_TOKENS,
    MAX_NGRAM_TOKENS,
    LookupPolicy,
    SpeculationParams,
)

LOOKUP = "Prompt lookup"

_HELP = {
    "ngram_max": f"Longest n-gram that is looked up, up to {MAX_NGRAM_TOKENS}. Default: {{}}.",
    "ngram_min": "Shortest n-gram that counts as a match. Default: {}.",
    "max_draft": f"Most tokens of one draft, up to {MAX_DRAFT_TOKENS}. Default: {{}}.",
    "policy": "How long drafts are: auto weighs what was accepted so far against what a draft "
    "costs here; graded and gated follow what was accepted; fixed never adapts. Default: {}.",
}


def complete_policies(incomplete: str) -> list[str]:
    """Names of policies, for the shell's TAB."""
    return [policy for policy in LookupPolicy if policy.startswith(incomplete)]


def lookup_help(name: str) -> str:
    """The help text of one of `SpeculationParams`' fields, whatever a command calls its option."""
    return _HELP[name].format(getattr(SpeculationParams(), name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """Whether answers are drafted from the context, and how far."""

    prompt_lookup: Annotated[
        bool | None,
        typer.Option(
            "--prompt-lookup/--no-prompt-lookup", rich_help_panel=LOOKUP,
            help="Draft from the prompt and the answer so far, and verify several tokens in one "
            "forward. The text stays the same; edits, extracts and code get faster.",
        ),
    ] = None  # fmt: skip
    prompt_lookup_ngram_max: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=LOOKUP, help=lookup_help("ngram_max")),
    ] = None
    prompt_lookup_ngram_min: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=LOOKUP, help=lookup_help("ngram_min")),
    ] = None
    prompt_lookup_max_draft: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=LOOKUP, help=lookup_help("max_draft")),
    ] = None
    prompt_lookup_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", rich_help_panel=LOOKUP, autocompletion=complete_policies,
            help=lookup_help("policy"),
        ),
    ] = None  # fmt: skip
    lookup_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--lookup-file", metavar="FILE", rich_help_panel=LOOKUP,
            help="Draft from this UTF-8 text file too; the model does not see it. May be given "
            "several times.",
        ),
    ] = None  # fmt: skip


def check_dependent_options(given: LookupOptions, filled: LookupOptions) -> None:
    """Refuse options of prompt lookup on a command line that leaves it off.

    Args:
        given: the command line's.
        filled: with the settings of environment and options file.

    Raises:
        InvalidParams: names the option, and ``--prompt-lookup``.
    """
    if filled.prompt_lookup:
        return
    for one in fields(given):
        if one.name != "prompt_lookup" and getattr(given, one.name):
            raise InvalidParams(_spelling(one.name), "needs --prompt-lookup")


def speculation_params(options: LookupOptions) -> SpeculationParams | None:
    """What the engine takes; None where prompt lookup is off.

    Raises:
        InvalidParams: a value is out of its range; names the option.
    """
    if not options.prompt_lookup:
        return None
    values: dict[str, Any] = {
        name: value
        for name in _HELP
        if (value := getattr(options, f"prompt_lookup_{name}")) is not None
    }
    try:
        if "policy" in values:
            values["policy"] = _policy(values["policy"])
        return SpeculationParams(**values)
    except InvalidParams as error:
        raise InvalidParams(_spelling(f"prompt_lookup_{error.field}"), error.problem) from None


def read_lookup_files(paths: list[Path] | None) -> tuple[tuple[str, str], ...]:
    """Name and text of each file.

    Raises:
        InvalidParams: a file is not UTF-8.
        OSError: it cannot be read.
    """
    return tuple((str(path), _text(path)) for path in paths or ())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParams(
            "--lookup-file", f"{path} is not UTF-8 text: a bad byte at {error.start}"
        ) from None


def _policy(name: str) -> LookupPolicy:
    try:
        return LookupPolicy(name)
    except ValueError:
        raise InvalidParams(
            "policy", f"must be one of {', '.join(LookupPolicy)}, not {name!r}"
        ) from None


def _spelling(name: str) -> str:
    return "--" + name.replace("_", "-")
