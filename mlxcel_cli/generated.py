"""Writes what is generated from the commands: completion scripts and pages of docs/.

`make generated` runs it; a test holds each file against what this module makes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxcel_cli.app import PROGRAM
from mlxcel_cli.command_tree import command_tree
from mlxcel_cli.configuration_page import configuration_page
from mlxcel_cli.exit_codes import ExitCode
from mlxcel_cli.help_text import HELP_COLUMNS

COMPLETIONS = {"bash": "mlxcel.bash", "zsh": "_mlxcel", "fish": "mlxcel.fish"}
"""Shell to file name, as each shell's own completion folders expect it."""

_NOTE = "Written by `make generated`."


def generated_files() -> dict[str, str]:
    """Path under the repository's root to content."""
    files = {f"completions/{name}": completion_script(shell) for shell, name in COMPLETIONS.items()}
    files["docs/cli.md"] = cli_page()
    files["docs/configuration.md"] = configuration_page(_NOTE)
    files["docs/exit-codes.md"] = exit_codes_page()
    return files


def completion_script(shell: str) -> str:
    """What a shell reads to complete ``mlxcel``: it calls the program at each TAB."""
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name=PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE", shell=shell
    )
    return script.strip() + "\n"


def help_pages() -> Iterator[tuple[str, str]]:
    """Every command's full name and help page, 100 columns wide."""
    pending: list[tuple[str, Any, Any]] = [(PROGRAM, command_tree(), None)]
    while pending:
        name, command, parent = pending.pop(0)
        context = command.make_context(
            name.split()[-1],
            [],
            parent=parent,
            resilient_parsing=True,
            terminal_width=HELP_COLUMNS - 2,  # what a terminal of HELP_COLUMNS gives
        )
        yield name, command.get_help(context).rstrip() + "\n"
        children = getattr(command, "commands", {})
        pending += [(f"{name} {child}", children[child], context) for child in children]


def cli_page() -> str:
    """docs/cli.md: every help page."""
    parts = [f"# Command line\n\nWhat each command's `--help` says. {_NOTE}\n"]
    parts += [f"## {name}\n\n```text\n{page}```\n" for name, page in help_pages()]
    return "\n".join(parts)


def exit_codes_page() -> str:
    """docs/exit-codes.md: the table of exit statuses."""
    rows = [f"| {code.value} | {code.name} | {code.meaning} |" for code in ExitCode]
    return "\n".join(
        (
            "# Exit statuses",
            "",
            f"What `mlxcel` returns to the shell. {_NOTE}",
            "",
            "| status | name | meaning |",
            "|---|---|---|",
            *rows,
            "",
            "With `--json` an error is an object on stdout instead of a line on stderr:",
            '`{"type": "error", "error": {"type": "model_not_found", "message": "..."}}`.',
            "",
        )
    )


def main(root: Path) -> None:
    """Write every generated file under ``root``."""
    for name, content in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path.cwd())
