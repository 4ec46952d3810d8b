"""How help pages and TAB completions look: plain text, options grouped by topic.

Typer's own pages need rich, which costs a third of the time that `--help` may take, and they
show every alias of an option.
"""

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mlxcel_cli.typed_values import check_given_only

HELP_COLUMNS = 100
CONTEXT_SETTINGS = {"help_option_names": ["--help", "-h"], "max_content_width": HELP_COLUMNS}
"""Every command's: ``-h`` asks for help too, pages are at most 100 columns wide."""

PLAIN_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": CONTEXT_SETTINGS,
}
"""Every Typer's: no rich, no tracebacks of Typer's own."""

OTHER_OPTIONS = "Options"


def plain_typer(help_text: str) -> typer.Typer:
    """A Typer for a command with subcommands, set up as the root is."""
    return typer.Typer(cls=PlainGroup, help=help_text, no_args_is_help=True, **PLAIN_SETTINGS)


class _PlainPage:
    """Help and TAB of a command, or a group of commands; hidden spellings are accepted only."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` included, checked without pydantic where they can be."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            check_given_only(param)
        return params

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write commands, then arguments, then options by topic."""
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)
        _write_options(self.get_params(ctx), formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Typer's
        """Write the examples line by line."""
        epilog = getattr(self, "epilog", None)
        if epilog:
            formatter.write_paragraph()
            for line in inspect.cleandoc(epilog).splitlines():
                formatter.write(line + "\n")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Commands and options, without hidden spellings."""
        offered = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        return _bare(offered, self.get_params(ctx))


class PlainCommand(_PlainPage, TyperCommand):
    """A command with a plain help page."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] [PROMPT]...``: arguments as their metavar spells them."""
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return ["[OPTIONS]", *(one.metavar or one.name.upper() for one in arguments)]


class PlainGroup(_PlainPage, TyperGroup):
    """A group of commands with a plain help page."""


PLAIN_COMMAND: dict[str, Any] = {"cls": PlainCommand, "context_settings": CONTEXT_SETTINGS}
"""Every command's."""


def _bare(items: list[Any], params: list[Any]) -> list[Any]:
    """Completions that a person wants to see, without their help texts.

    Typer formats those with rich, which takes longer than all the rest of a TAB, and breaks
    long ones into lines, which zsh cannot read.
    """
    aliases = {name for param in params for name in set(param.opts) - set(_advertised(param))}
    shown = [
        item for item in items if item.value not in aliases and not item.value.startswith("--no-")
    ]
    for item in shown:
        item.help = None
    return shown


def _write_options(params: list[Any], formatter: Any) -> None:
    arguments: list[tuple[str, str]] = []
    topics: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        text = getattr(param, "help", None) or ""
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            arguments.append((param.metavar or param.name.upper(), text))
        else:
            topic = getattr(param, "rich_help_panel", None) or OTHER_OPTIONS
            topics.setdefault(topic, []).append((_spellings(param), text))
    # Options without a topic (--help) come last, whatever order they were declared in.
    rest = topics.pop(OTHER_OPTIONS, [])
    for title, rows in (("Arguments", arguments), *topics.items(), (OTHER_OPTIONS, rest)):
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _spellings(param: Any) -> str:
    """``-t, --temperature T``: short spellings first, aliases left out."""
    line = ", ".join(_advertised(param))
    opposite = [name for name in param.secondary_opts if not name.startswith("--no-")]
    if opposite:
        line += " / " + ", ".join(opposite)
    return line if param.is_flag or param.count else f"{line} {param.metavar or 'VALUE'}"


def _advertised(param: Any) -> list[str]:
    """Short spellings and the first long one; more long ones are other programs' names for it."""
    long = [name for name in param.opts if name.startswith("--")]
    return [name for name in param.opts if name not in long] + long[:1]
