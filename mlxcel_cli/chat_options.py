"""The options that only ``mlxcel chat`` has."""

from dataclasses import dataclass
from typing import Annotated

import typer

from mlxcel_cli.options import (
    NETWORK,
    ApiKeys,
    Config,
    Messages,
    ShowReasoning,
    Stats,
    System,
    Verbose,
)

CHAT = "Chat"


def complete_themes(incomplete: str) -> list[str]:
    """Names of themes, for the shell's TAB; Textual is not asked, it costs too much."""
    names = ("auto", "dark", "light", "ansi", "nord", "gruvbox", "dracula", "tokyo-night")
    return [name for name in names if name.startswith(incomplete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a chat is shown, saved and found again, and where its model runs."""

    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume", "-r", rich_help_panel=CHAT,
            help="Resume a saved chat: the one whose id is given, else choose from a list.",
        ),
    ] = None  # fmt: skip
    continue_newest: Annotated[
        bool | None,
        typer.Option(
            "--continue", rich_help_panel=CHAT, help="Resume the chat that was changed last."
        ),
    ] = None  # fmt: skip
    save: Annotated[
        bool | None,
        typer.Option(
            "--save/--no-save", rich_help_panel=CHAT,
            help="Save chats as they happen, or leave no trace. Default: save.",
        ),
    ] = None  # fmt: skip
    plain: Annotated[
        bool | None,
        typer.Option(
            "--plain/--tui", rich_help_panel=CHAT,
            help="Line mode: plain text, for screen readers and simple terminals. Default: the "
            "full screen where the terminal can.",
        ),
    ] = None  # fmt: skip
    theme: Annotated[
        str | None,
        typer.Option(
            "--theme", metavar="NAME", rich_help_panel=CHAT, autocompletion=complete_themes,
            help="Colours: dark, light, ansi (the terminal's own) or one of Textual's themes; it "
            "is kept for later chats.",
        ),
    ] = None  # fmt: skip
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", rich_help_panel=NETWORK,
            help="Chat with a model on an OpenAI-shaped server, http://localhost:8080/v1 for "
            "example, instead of loading one.",
        ),
    ] = None  # fmt: skip
    api_key: ApiKeys = None
    system: System = None
    messages: Messages = None
    stats: Stats = None
    show_reasoning: ShowReasoning = None
    verbose: Verbose = None
    config: Config = None
