"""``mlxcel models``: the models on this machine, and bringing and removing them."""

from typing import Annotated

import typer

from mlxcel_cli.help_text import PLAIN_COMMAND, plain_typer
from mlxcel_cli.options import Config, Json, complete_models

LIST_EXAMPLES = """
Examples:
  mlxcel models list
  mlxcel models list --json | jq -r .name
"""

SHOW_EXAMPLES = """
Examples:
  mlxcel models show starter
  mlxcel models show ./my-model --json
"""

PULL_EXAMPLES = """
Examples:
  mlxcel models pull mlx-community/Qwen3-0.6B-4bit
  mlxcel models pull Qwen/Qwen3-0.6B-GGUF:Q8_0
  mlxcel models pull starter

A pull that was interrupted resumes where it stopped. Files go to Hugging Face's own cache, which
other tools share; HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and HTTPS_PROXY count.
"""

RM_EXAMPLES = """
Examples:
  mlxcel models rm mlx-community/Qwen3-0.6B-4bit
  mlxcel models rm starter --yes
"""

LocalName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        autocompletion=complete_models,
        help="A local model: its name or hub id, an alias, a folder or a .gguf file.",
    ),
]

models_app = plain_typer("List, show, fetch and remove models.")


@models_app.command("list", epilog=LIST_EXAMPLES, **PLAIN_COMMAND)
def list_models(json: Json = None, config: Config = None) -> None:
    """List the models on this machine."""
    # Imported here, as in every command: --help must not load the engine.
    from mlxcel_cli.model_manager import ModelManager

    ModelManager.open(config).list(as_json=bool(json))


@models_app.command("show", epilog=SHOW_EXAMPLES, **PLAIN_COMMAND)
def show(name: LocalName, json: Json = None, config: Config = None) -> None:
    """Show what a local model is, without loading it."""
    from mlxcel_cli.model_manager import ModelManager

    ModelManager.open(config).show(name, as_json=bool(json))


@models_app.command("pull", epilog=PULL_EXAMPLES, **PLAIN_COMMAND)
def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A hub id (owner/name), of a GGUF repository perhaps with a file or quantization "
            "(owner/name:Q4_0); or starter.",
        ),
    ],
    config: Config = None,
) -> None:
    """Fetch a model from the hub."""
    from mlxcel_cli.model_manager import ModelManager

    ModelManager.open(config).pull(name)


@models_app.command("rm", epilog=RM_EXAMPLES, **PLAIN_COMMAND)
def remove(
    name: LocalName,
    yes: Annotated[bool | None, typer.Option("--yes", "-y", help="Do not ask.")] = None,
    config: Config = None,
) -> None:
    """Remove a model from mlxcel's or Hugging Face's cache."""
    from mlxcel_cli.model_manager import ModelManager

    ModelManager.open(config).remove(name, ask=not yes)
