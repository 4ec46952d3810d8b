"""Writes what is generated from the commands: completion scripts and pages of docs/.

`make generated` runs it; a test holds each file against what this module makes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxcel_cli.app import PROGRAM
from mlxcel_cli.command_tree import command_tree
from mlxcel_cli.config import MachineSettings, setting_types
from mlxcel_cli.exit_codes import ExitCode
from mlxcel_cli.help_text import HELP_COLUMNS

COMPLETIONS = {"bash": "mlxcel.bash", "zsh": "_mlxcel", "fish": "mlxcel.fish"}
"""Shell to file name, as each shell's own completion folders expect it."""

_NOTE = "Written by `make generated`."

_HEAD = """# Configuration

Where `mlxcel` takes a setting from. {note}

The first place that names a setting wins:

1. the command line, `--temperature 0.7`;
2. the environment, `MLXCEL_TEMPERATURE=0.7`;
3. the options file, in the table of the command that runs (`[generate]`, `[chat]`, `[serve]`);
4. the options file, at its top;
5. for `chat` and `serve`: the model's own `generation_config.json`;
6. the default. `generate` then always takes the most likely token, so that a script gets the same
   answer each time; it does not ask the model's `generation_config.json`.

The options file is `config.toml` in the configuration folder (`~/.config/mlxcel` on Linux,
`~/Library/Application Support/mlxcel` on macOS), or the file that `--config` or `MLXCEL_CONFIG`
names. Keys are spelt as the options are, with `-` or `_`. An unknown key or a value of the wrong
type is refused, not skipped.

```toml
model = "small"
max-tokens = 400

[generate]
temperature = 0.2
stop = ["\\n\\n"]

[aliases]
small = "mlx-community/Qwen3-0.6B-4bit"

[keys]
new-chat = "f9"
```

`[keys]` changes keys of the chat by their actions' ids, which `docs/chat.md` lists.

In the environment a switch is `1` or `0` (`true`, `yes`, `on` and their opposites will do), and
several strings are a JSON array: `MLXCEL_STOP='["a", "b"]'`; an empty variable is no setting.
What makes a prompt (the prompt itself, `--messages`, `--prefill`) is never taken from a setting.

Of other programs' variables these are honoured: `HF_HUB_OFFLINE` (ask no hub), `HF_HUB_CACHE`,
`HF_HOME` and `XDG_CACHE_HOME` (where downloads lie), `NO_COLOR` and `TERM=dumb` (no escape codes),
`OPENBLAS_NUM_THREADS` (threads of the BLAS on a CPU).
"""

_TYPES = {bool: "switch", int: "whole number", float: "number", list: "strings"}

_MEANINGS = {
    "home": "folder of converted models and compiled parts; default: the platform's cache folder",
    "blas": "`off`, or the path of a BLAS library, for MLX's CPU backend on Linux",
    "deterministic": "kernels whose results do not depend on the batch's width, where MLX has any",
    "cache_clear_interval": "tokens between two clearings of MLX's buffer cache; 0 is never",
    "force_sync": "read each token before the next forward is dispatched",
    "prefill_chunk": "most prompt tokens of one forward; 0 is the whole prompt",
    "debug": "show tracebacks",
}


def generated_files() -> dict[str, str]:
    """Path under the repository's root to content."""
    files = {f"completions/{name}": completion_script(shell) for shell, name in COMPLETIONS.items()}
    files["docs/cli.md"] = cli_page()
    files["docs/configuration.md"] = configuration_page()
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


def configuration_page() -> str:
    """docs/configuration.md: how settings are found, and every one of them."""
    types = setting_types()
    machine = MachineSettings.__dataclass_fields__
    lines = [_HEAD.format(note=_NOTE), "## Options", "", "| key | variable | type | option |"]
    lines.append("|---|---|---|---|")
    for key, option in _options():
        kind = _TYPES.get(types[key], "string")
        lines.append(f"| {key} | `MLXCEL_{key.upper()}` | {kind} | `{option}` |")
    lines += ["", "## The machine's settings", "", "| key | variable | type | meaning |"]
    lines.append("|---|---|---|---|")
    for key in machine:
        kind = _TYPES.get(types[key], "string")
        lines.append(f"| {key} | `MLXCEL_{key.upper()}` | {kind} | {_MEANINGS[key]} |")
    return "\n".join(lines) + "\n"


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


def _options() -> list[tuple[str, str]]:
    """Key and canonical spelling of every option that is a setting."""
    known = setting_types()
    commands: Any = command_tree().commands
    params = [one for name in ("generate", "chat") for one in commands[name].params]
    options = {
        one.name: one.opts[0]
        for one in params
        if one.param_type_name == "option" and one.name in known
    }
    return list(options.items())


def main(root: Path) -> None:
    """Write every generated file under ``root``."""
    for name, content in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path.cwd())
