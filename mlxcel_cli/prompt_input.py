"""Makes one prompt of words, an option, a file, a pipe or a conversation."""

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from engine.errors import InvalidParams
from engine.text.messages import check_messages
from mlxcel_cli.options import PromptOptions

STDIN = "-"


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """Which sources a command line names, before any of them is read."""

    text: str | None
    """Given on the command line itself."""
    file: Path | None
    messages: Path | None
    reads_stdin: bool
    options: PromptOptions


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One prompt; exactly one of ``messages`` and ``raw`` is given."""

    messages: tuple[dict[str, object], ...] | None = None
    """A conversation for the chat template, OpenAI-shaped."""
    raw: str | None = None
    """A string for the model, verbatim."""
    prefill: str = ""
    """Start of the answer."""
    template_values: Mapping[str, object] = field(default_factory=dict)
    """More variables for the chat template."""


def plan_prompt(words: Sequence[str], options: PromptOptions, stdin: BinaryIO | None) -> PromptPlan:
    """Choose the sources, and refuse those that exclude each other.

    A file is joined after the prompt, and a pipe after both. Stdin counts only if it is a pipe or
    a file: programs that start others often leave one open on which nothing ever arrives.

    Raises:
        InvalidParams: two sources of one prompt (both are named), or none at all.
    """
    in_words = [word for word in words if word != STDIN]
    sources = {
        "the words on the command line": bool(in_words),
        "--prompt": options.prompt is not None,
        "--file": options.file is not None,
        "--messages": options.messages is not None,
    }
    given = [name for name, is_given in sources.items() if is_given]
    # A file goes with a prompt, a conversation with nothing.
    _refuse_two(
        given if options.messages is not None else [one for one in given if one != "--file"]
    )
    _refuse_template_options_with_raw(options)
    paths = (options.file, options.messages)
    stdin_is_file = any(path is not None and str(path) == STDIN for path in paths)
    dash = STDIN in words
    if dash and (stdin_is_file or options.messages is not None):
        raise InvalidParams("-", "stdin cannot be the prompt and --file or --messages as well")
    if dash and stdin is None:
        raise InvalidParams("-", "stdin is closed")
    piped = options.messages is None and not stdin_is_file and _is_pipe_or_file(stdin)
    if not any(sources.values()) and not dash and not piped:
        raise InvalidParams(
            "prompt",
            'is missing: give it in quotes (mlxcel generate "..."), with --file, or through a '
            "pipe; for a conversation in the terminal there is mlxcel chat",
        )
    text = options.prompt if options.prompt is not None else (" ".join(in_words) or None)
    return PromptPlan(text, options.file, options.messages, dash or piped, options)


def read_prompt(plan: PromptPlan, stdin: BinaryIO | None) -> PromptInput:
    """Read the sources of a plan; blocks until stdin ends, if it is one of them.

    Raises:
        InvalidParams: a file is not UTF-8, a conversation is malformed, or the prompt is empty.
        OSError: a file cannot be read.
    """
    prefill = plan.options.prefill or ""
    if plan.messages is not None:
        messages = parse_messages(_read_text(plan.messages, stdin, "--messages"))
        return PromptInput(messages=_with_system(messages, plan.options.system), prefill=prefill)
    parts = []
    if plan.text is not None:
        parts.append(plan.text)
    if plan.file is not None:
        parts.append(_read_text(plan.file, stdin, "--file"))
    if plan.reads_stdin:
        parts.append(_read_text(Path(STDIN), stdin, "stdin"))
    if plan.options.raw:
        # Not a byte is changed: the last newline may be part of the prompt.
        text = "\n\n".join(part for part in parts if part)
        return PromptInput(raw=_not_empty(text) + prefill, prefill=prefill)
    text = "\n\n".join(stripped for part in parts if (stripped := part.rstrip("\r\n")))
    asked: dict[str, object] = {"role": "user", "content": _not_empty(text)}
    return PromptInput(messages=_with_system((asked,), plan.options.system), prefill=prefill)


def parse_messages(text: str) -> tuple[dict[str, object], ...]:
    """An OpenAI-shaped conversation from its JSON.

    Raises:
        InvalidParams: not JSON, or a message is malformed; names its place.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidParams("--messages", "is nested too deeply") from None
    except ValueError as error:
        raise InvalidParams("--messages", f"is not JSON: {error}") from None
    if isinstance(value, dict) and "messages" in value:
        value = value["messages"]
    return tuple(check_messages(value))


def _with_system(
    messages: tuple[dict[str, object], ...], system: str | None
) -> tuple[dict[str, object], ...]:
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise InvalidParams("--system", "the conversation of --messages has a system message")
    return ({"role": "system", "content": system}, *messages)


def _refuse_two(given: list[str]) -> None:
    if len(given) > 1:
        raise InvalidParams("prompt", f"give it once: {given[0]} or {given[1]}, not both")


def _refuse_template_options_with_raw(options: PromptOptions) -> None:
    for name, value in (("--system", options.system), ("--messages", options.messages)):
        if options.raw and value is not None:
            raise InvalidParams("--raw", f"leaves the chat template out, but {name} needs it")


def _is_pipe_or_file(stdin: BinaryIO | None) -> bool:
    if stdin is None:
        return False
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_text(path: Path, stdin: BinaryIO | None, source: str) -> str:
    if str(path) != STDIN:
        content = path.read_bytes()
    elif stdin is None:
        raise InvalidParams(source, "stdin is closed")
    else:
        content = stdin.read()
    return utf8_text(source if str(path) == STDIN else str(path), content)


def utf8_text(name: str, content: bytes) -> str:
    """The text of a file's bytes, without a byte order mark.

    Raises:
        InvalidParams: it is not UTF-8; ``name`` is the file's.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidParams(
            name, f"is not UTF-8 text: byte {content[error.start]:#04x} at {error.start}"
        ) from None


def _not_empty(text: str) -> str:
    if not text.strip():
        raise InvalidParams("prompt", "is empty: there is nothing to answer")
    return text


def process_stdin() -> BinaryIO | None:
    """The process's stdin as bytes; None when it was started without one."""
    return None if sys.stdin is None else sys.stdin.buffer
