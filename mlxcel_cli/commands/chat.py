"""``mlxcel chat``: talk with a model, full screen or line by line."""

from mlxcel_cli.command_lines import ChatCommand
from mlxcel_cli.option_groups import takes_groups

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


@takes_groups
def chat(command: ChatCommand) -> int:
    """Talk with a model in the terminal.

    Chats are saved as they happen. In a pipe, or with --plain, each line is a message and plain
    text comes back.
    """
    # Imported here: --help must not load the engine.
    from mlxcel_cli.chat_front import chat_in_terminal

    return chat_in_terminal(command)
