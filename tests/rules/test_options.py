"""Rules of the command line: one meaning per option, help for everything."""

from collections import defaultdict
from collections.abc import Iterator

from mlxcel_cli.command_tree import command_tree


def commands() -> Iterator[tuple[str, object]]:
    """Every command with its full name, groups included."""
    pending = [("mlxcel", command_tree())]
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
    for _, command in commands():
        for option in options(command):
            kind = option.type_descriptor
            meaning = (
                option.name,
                tuple(option.opts),
                (repr(kind.annotation), option.min, option.max, option.multiple),
                repr(option.default),
                option.help,
            )
            for spelling in (*option.opts, *option.secondary_opts):
                meanings[spelling].add(meaning)
    assert {spelling: found for spelling, found in meanings.items() if len(found) > 1} == {}


def test_every_command_has_help():
    assert [name for name, command in commands() if not command.help] == []


def test_every_option_has_help():
    silent = [
        f"{name} {option.opts[0]}"
        for name, command in commands()
        for option in options(command)
        if not option.help
    ]
    assert silent == []


def test_the_rule_sees_the_commands():
    assert {"mlxcel generate", "mlxcel models pull"} <= {name for name, _ in commands()}
