"""Rules of the command line: one meaning per option, help for everything."""

import importlib
from collections import defaultdict
from collections.abc import Iterator

import typer


def command_tree() -> Iterator[tuple[str, object]]:
    """Every command with its full name, groups included."""
    app = importlib.import_module("mlxcel_cli.app").app
    pending = [("mlxcel", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        yield name, command
        pending += [(f"{name} {sub}", child) for sub, child in subcommands(command).items()]


def subcommands(command: object) -> dict[str, object]:
    return getattr(command, "commands", {})


def options(command) -> list:
    return [
        param
        for param in command.params
        if param.param_type_name == "option" and "--help" not in param.opts
    ]


def test_an_option_shared_by_commands_has_one_name_type_default_and_help():
    meanings = defaultdict(set)
    for _, command in command_tree():
        for option in options(command):
            meaning = (
                option.name,
                tuple(option.opts),
                repr(option.type),
                repr(option.default),
                option.multiple,
                option.help,
            )
            for spelling in (*option.opts, *option.secondary_opts):
                meanings[spelling].add(meaning)
    assert {spelling: found for spelling, found in meanings.items() if len(found) > 1} == {}


def test_every_command_has_help():
    assert [name for name, command in command_tree() if not command.help] == []


def test_every_option_has_help():
    silent = [
        f"{name} {option.opts[0]}"
        for name, command in command_tree()
        for option in options(command)
        if not option.help
    ]
    assert silent == []


def test_the_rule_sees_the_commands():
    assert {"mlxcel generate", "mlxcel models pull"} <= {name for name, _ in command_tree()}
