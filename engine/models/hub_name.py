"""Reads a hub id: `owner/name`, or `owner/name:FILE.gguf` for one file of a GGUF repository."""

import re
from dataclasses import dataclass

# What Hugging Face allows: A-Z, a-z, digits, `-`, `_` and `.`, but no `..` or `--` and no dot or
# dash at either end. Nothing that can leave a folder gets through.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?!.*(?:\.\.|--))({_PART})/({_PART})")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class HubName:
    """One repository on the hub, and perhaps one file in it."""

    owner: str
    name: str
    file: str | None = None
    """A GGUF file's name, or the quantization in it: ``"Q4_0"``."""

    @property
    def repository(self) -> str:
        """The hub's own name for it: `owner/name`."""
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        """As a person types it."""
        return self.repository if self.file is None else f"{self.repository}:{self.file}"


def parse_hub_name(text: str) -> HubName | None:
    """Return the hub id that `text` spells, or None if it spells none."""
    repository, parted, file = text.partition(":")
    found = _REPOSITORY.fullmatch(repository)
    if found is None or (parted and (_FILE.fullmatch(file) is None or ".." in file)):
        return None
    return HubName(found[1], found[2], file or None)
