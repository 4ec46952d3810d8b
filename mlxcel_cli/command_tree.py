"""The commands of ``mlxcel`` and where each one lives.

A command's module is imported when it is asked for; what is heavy is imported inside the
command. So a help page or a TAB costs neither MLX nor a terminal interface.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any

import typer

from mlxcel_cli.help_text import CONTEXT_SETTINGS, PLAIN_COMMAND, PLAIN_SETTINGS, PlainGroup

COMMANDS = MappingProxyType(
    {
        "chat": "mlxcel_cli.commands.chat:chat",
        "bench": "mlxcel_cli.commands.bench:bench_app",
        "doctor": "mlxcel_cli.commands.doctor:doctor",
        "generate": "mlxcel_cli.commands.generate:generate",
        "serve": "mlxcel_cli.commands.serve:serve",
        "parity": "mlxcel_cli.commands.parity:parity",
        "models": "mlxcel_cli.commands.models:models_app",
    }
)
"""Name to ``module:attribute``. The attribute is the command's function, whose module may hold
its examples as ``EXAMPLES``, or a ``typer.Typer`` with subcommands."""

EXAMPLES = """
Examples:
  mlxcel chat
  mlxcel generate "Write one short sentence about the sea."
  mlxcel serve --port 8080
  mlxcel generate --help
"""


def command_tree() -> Any:
    """The root command; ``main(args, standalone_mode=False)`` runs it."""
    app = typer.Typer(cls=_Root, **PLAIN_SETTINGS | {"add_completion": True})
    app.callback(epilog=EXAMPLES, context_settings=CONTEXT_SETTINGS, no_args_is_help=True)(_mlxcel)
    return typer.main.get_command(app)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - Typer's callback
    if asked:
        from importlib.metadata import version

        typer.echo(f"mlxcel {version('mlxcel')}")
        raise typer.Exit


def _mlxcel(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Run open-weight language models on your own machine."""


class _Commands(Mapping[str, Any]):
    """The commands by name, each built at its first use."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(name, COMMANDS[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Root(PlainGroup):
    def __init__(self, **settings: Any) -> None:
        settings["commands"] = _Commands()
        super().__init__(**settings)


def _build(name: str, place: str) -> Any:
    module_name, attribute = place.split(":")
    module = import_module(module_name)
    command = getattr(module, attribute)
    if isinstance(command, typer.Typer):
        built = typer.main.get_command(command)
        built.name = name
        return built
    app = typer.Typer(**PLAIN_SETTINGS)
    app.command(name, epilog=getattr(module, "EXAMPLES", None), **PLAIN_COMMAND)(command)
    return typer.main.get_command(app)
