"""Puts files into prompts: ``@path`` in a prompt becomes the file's text in a fenced block."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from engine.errors import InvalidParams
from mlxcel_cli.paths import typed_path
from mlxcel_cli.prompt_input import utf8_text

LARGEST_BYTES = 1 << 20
"""Of one file: about 300,000 tokens, more than any model's context here."""

MOST_COMPLETIONS = 50

_MENTION = re.compile(r'(?<!\S)@("[^"\n]+"|\S+)')


def attach(text: str, read: Callable[[Path], str] | None = None) -> str:
    """``text`` with the files it mentions after it, each in a fence that names it.

    ``@word`` counts as a file only where one goes by that name; ``@"a name.txt"`` may hold spaces.

    Raises:
        InvalidParams: a file is too large, or not text.
        OSError: it cannot be read.
    """
    paths: dict[Path, None] = {}
    for match in _MENTION.finditer(text):
        path = _mentioned(match.group(1))
        if path is not None:
            paths[path] = None
    reading = read_text if read is None else read
    blocks = [fenced(path, reading(path)) for path in paths]
    return "\n\n".join([text, *blocks])


def mention(path: Path) -> str:
    """How a prompt names ``path``."""
    return f'@"{path}"' if re.search(r"\s", str(path)) else f"@{path}"


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        InvalidParams: too large, or not UTF-8 text.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        # Some files, of /proc for example, have no size.
        content = file.read(LARGEST_BYTES + 1) if size <= LARGEST_BYTES else b""
    if max(size, len(content)) > LARGEST_BYTES:
        has = f"has {size:,}" if size > LARGEST_BYTES else "has more"
        raise InvalidParams(f"@{path}", f"{has} bytes; at most {LARGEST_BYTES:,} can be attached")
    text = utf8_text(f"@{path}", content)
    if "\0" in text:
        raise InvalidParams(f"@{path}", "is not text: it has null bytes")
    return text


def fenced(path: Path, text: str) -> str:
    """A block that no fence inside the text can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    language = path.suffix.removeprefix(".")
    return f"{path.name}:\n{fence}{language}\n{text.rstrip()}\n{fence}"


def complete_path(start: str) -> list[str]:
    """Paths that begin with ``start``, folders with a slash at their end."""
    folder, _, name = start.rpartition("/")
    try:
        base = typed_path("@", folder + "/" if "/" in start else ".")
        entries = sorted(os.scandir(base), key=lambda entry: entry.name)
    except (OSError, InvalidParams):
        return []
    prefix = start[: len(start) - len(name)]
    found = [
        f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith("."))
    ]
    return found[:MOST_COMPLETIONS]


def _mentioned(word: str) -> Path | None:
    """The file a mention names; a comma or full stop after it is the sentence's."""
    quoted = word.startswith('"')
    names = [word.strip('"')] if quoted else [word, word.rstrip(".,;:!?)")]
    for name in names:
        try:
            path = typed_path("@", name)
            if name and path.is_file():
                return path
        except (OSError, InvalidParams):
            continue
    return None
