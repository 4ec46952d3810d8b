"""What is typed reaches a command as Typer reads it; pydantic is loaded only where it must be."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

from mlxcel_cli.help_text import PlainCommand

ROOT = Path(__file__).parents[2]


def command(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    *,
    text: Annotated[str | None, typer.Option()] = None,
    count: Annotated[int | None, typer.Option()] = None,
    few: Annotated[int | None, typer.Option(max=3)] = None,
    part: Annotated[float | None, typer.Option()] = None,
    path: Annotated[Path | None, typer.Option()] = None,
    switch: Annotated[bool | None, typer.Option("--switch/--no-switch")] = None,
    names: Annotated[list[str] | None, typer.Option()] = None,
    twice: Annotated[str | None, typer.Option(parser=lambda value: value * 2)] = None,
) -> tuple:
    return words, text, count, few, part, path, switch, names, twice


def parsed(*arguments: str, checks_all: bool) -> object:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=None if checks_all else PlainCommand)(command)
    built = typer.main.get_command(app)
    try:
        return built.main(list(arguments), standalone_mode=False)
    except typer._click.exceptions.BadParameter as error:
        return error.format_message()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["--text", ""],
        ["--text", "x", "--names", "a", "--names", "b"],
        ["--count", "3", "--path", "/tmp/x"],
        ["--count", "three"],
        ["--count", "-12"],
        ["--count", "3.0"],
        ["--count", "3.5"],
        ["--few", "3"],
        ["--few", "4"],
        ["--part", "0.25"],
        ["--part", "1e-3"],
        ["--part", "2"],
        ["--part", "x"],
        ["--switch"],
        ["--no-switch"],
        ["--twice", "ab"],
    ],
    ids=" ".join,
)
def test_values_are_those_of_typer(arguments):
    ours, theirs = parsed(*arguments, checks_all=False), parsed(*arguments, checks_all=True)
    assert ours == theirs
    assert [type(one) for one in ours] == [type(one) for one in theirs]


PROGRAM = """
import sys
from mlxcel_cli.command_tree import command_tree
import mlxcel_cli.commands.chat as module
from mlxcel_cli.chat import start
start.prepare = lambda command, environ: 1 / 0
try:
    command_tree().main(sys.argv[1:], standalone_mode=False)
except ZeroDivisionError:
    print("pydantic" in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "is_loaded"),
    [(["chat"], False), (["chat", "qwen3", "--no-save", "--theme", "dark"], False),
     (["chat", "--top-k", "3", "-t", "0.5"], False), (["chat", "--config", "x.toml"], True)],
)  # fmt: skip
def test_a_command_starts_without_pydantic_unless_a_value_wants_it(arguments, is_loaded):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(is_loaded)
