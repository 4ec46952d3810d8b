"""``mlxcel chat``: talk with a model, full screen or line by line."""

from typing import Annotated

import typer

from mlxcel_cli.chat_options import ChatOptions
from mlxcel_cli.lookup_options import LookupOptions
from mlxcel_cli.option_groups import takes_groups
from mlxcel_cli.options import LengthOptions, ModelOptions, complete_models
from mlxcel_cli.sampling_options import SamplingOptions

EXAMPLES = """
Examples:
  mlxcel chat
  mlxcel chat qwen3 --system "Answer in one sentence."
  mlxcel chat main.py
  mlxcel chat --continue
  mlxcel chat --resume 3fa9
  mlxcel chat --url http://localhost:8080/v1
  mlxcel chat --plain < questions.txt

What neither options nor settings say is taken from the model's own generation_config, else
temperature 0.7 and top-p 0.95. Keys, commands and saved chats: docs/chat.md.
"""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [FILE]...",
        help="A model, as --model takes it; a file is attached to the first message.",
        autocompletion=complete_models,
    ),
]


@takes_groups
def chat(
    model: ModelOptions,
    chat: ChatOptions,
    length: LengthOptions,
    sampling: SamplingOptions,
    lookup: LookupOptions,
    words: Words = None,
) -> int:
    """Talk with a model in the terminal.

    Chats are saved as they happen. In a pipe, or with --plain, each line is a message and plain
    text comes back.
    """
    # Imported here, so that --help need not wait for it.
    from mlxcel_cli.chat.start import ChatCommand
    from mlxcel_cli.chat_front import chat_in_terminal

    return chat_in_terminal(
        ChatCommand(
            words=tuple(words or ()),
            model=model,
            length=length,
            sampling=sampling,
            lookup=lookup,
            chat=chat,
        )
    )
