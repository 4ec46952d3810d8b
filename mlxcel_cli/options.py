"""Every option that commands share, once: its name, type and help text.

Options come in groups, frozen dataclasses whose fields are Typer parameters. A command takes
groups as parameters and is wrapped by ``takes_groups``; so two commands cannot spell one option
differently. None means "not given": `config.py` then asks the environment, the options file
and the defaults, in that order.

The first long spelling of an option is its name; others (those of llama.cpp, mlx-lm and older
tools) are accepted and not advertised. The sampler's options stand in `sampling_options.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

PROMPT = "Prompt"
MODEL = "Model"
LENGTH = "Length and stops"
OUTPUT = "Output"
NETWORK = "Network"


def complete_models(incomplete: str) -> list[str]:
    """Names of local models, for the shell's TAB."""
    from mlxcel_cli.local_models import local_model_names

    return [name for name in local_model_names() if name.startswith(incomplete)]


PromptText = Annotated[
    str | None,
    typer.Option(
        "--prompt", "-p", metavar="TEXT", rich_help_panel=PROMPT,
        help="The prompt, instead of words on the command line.",
    ),
]  # fmt: skip
Raw = Annotated[
    bool | None,
    typer.Option(
        "--raw/--no-raw", "--no-chat-template", rich_help_panel=PROMPT,
        help="Send the prompt to the model verbatim, without its chat template; strings like "
        "<|im_start|> are then the special tokens they name.",
    ),
]  # fmt: skip
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", "--n-predict", "--predict", metavar="N", rich_help_panel=LENGTH,
        help="Most tokens to generate; -1 is until the model ends or the context is full. "
        "Default: -1; of parity: 64; of bench lookup: as many as each task needs.",
    ),
]  # fmt: skip


Messages = Annotated[
    Path | None,
    typer.Option(
        "--messages", metavar="FILE", rich_help_panel=PROMPT,
        help="Read a conversation from a JSON file, an array of OpenAI-shaped messages or "
        'an object with a "messages" array; - is stdin.',
    ),
]  # fmt: skip
System = Annotated[
    str | None,
    typer.Option(
        "--system", "--system-prompt", metavar="TEXT", rich_help_panel=PROMPT,
        help="System message, put before the prompt.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Where the prompt comes from and how it is framed."""

    prompt: PromptText = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", rich_help_panel=PROMPT,
            help="Read the prompt, or what follows it, from a UTF-8 text file; - is stdin.",
        ),
    ] = None  # fmt: skip
    messages: Messages = None
    system: System = None
    prefill: Annotated[
        str | None,
        typer.Option(
            "--prefill", metavar="TEXT", rich_help_panel=PROMPT,
            help="Start of the answer: it is printed, and the model continues it.",
        ),
    ] = None  # fmt: skip
    raw: Raw = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, in which form."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", rich_help_panel=MODEL,
            autocompletion=complete_models,
            help="A folder, a .gguf file, a hub id (owner/name), an alias or the name of a local "
            "model. Default: the options file's, else the starter.",
        ),
    ] = None  # fmt: skip
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size", "-c", metavar="N", rich_help_panel=MODEL,
            help="Tokens of prompt and answer together. Default: the model's own.",
        ),
    ] = None  # fmt: skip
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="TYPE", rich_help_panel=MODEL,
            help="float32, float16 or bfloat16. Default: the checkpoint's on a GPU, float32 on "
            "a CPU.",
        ),
    ] = None  # fmt: skip
    quantized: Annotated[
        bool | None,
        typer.Option(
            "--quantized/--dense", rich_help_panel=MODEL,
            help="Keep quantised weights as they are, or unpack them. Default: what runs "
            "fastest here and fits.",
        ),
    ] = None  # fmt: skip
    offline: Annotated[
        bool | None,
        typer.Option(
            "--offline/--online", rich_help_panel=MODEL,
            help="Do without the network, or allow it; HF_HUB_OFFLINE is honoured.",
        ),
    ] = None  # fmt: skip
    force: Annotated[
        bool | None,
        typer.Option(
            "--force/--no-force", "--no-memory-check", rich_help_panel=MODEL,
            help="Load even if the model is estimated not to fit into memory.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthOptions:
    """When an answer ends."""

    max_tokens: MaxTokens = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", rich_help_panel=LENGTH,
            help="End the answer before this string; may be given several times.",
        ),
    ] = None  # fmt: skip
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos", rich_help_panel=LENGTH,
            help="Never sample an end token: only --max-tokens, --stop and the context end the "
            "answer.",
        ),
    ] = None  # fmt: skip


ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key", metavar="KEY", rich_help_panel=NETWORK,
        help="Key of the HTTP API. serve answers only requests that carry it, or one of several; "
        "chat sends it to the server of --url. MLXCEL_API_KEY keeps it out of the list of "
        "processes.",
    ),
]  # fmt: skip
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", rich_help_panel=OUTPUT,
        help="Options file (TOML). Default: config.toml in mlxcel's configuration folder.",
    ),
]  # fmt: skip
Verbose = Annotated[
    bool | None,
    typer.Option(
        "--verbose/--no-verbose", "-v", rich_help_panel=OUTPUT,
        help="Print on stderr which model, weights and device were chosen, and why.",
    ),
]  # fmt: skip
Json = Annotated[
    bool | None,
    typer.Option(
        "--json/--no-json", rich_help_panel=OUTPUT, help="Write JSON lines to stdout."
    ),
]  # fmt: skip

Stats = Annotated[
    bool | None,
    typer.Option(
        "--stats/--no-stats", rich_help_panel=OUTPUT,
        help="Print token counts, times, rates and the seed on stderr.",
    ),
]  # fmt: skip
ShowReasoning = Annotated[
    bool | None,
    typer.Option(
        "--show-reasoning/--hide-reasoning", rich_help_panel=OUTPUT,
        help="Show the reasoning of a model that thinks before it answers.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is shown, and where settings come from."""

    json: Json = None
    stats: Stats = None
    show_reasoning: ShowReasoning = None
    verbose: Verbose = None
    config: Config = None
