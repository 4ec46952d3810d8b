"""Which theme the screen has: the one asked for, else the last one used."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from engine.errors import InvalidParams

SHORT_NAMES = {
    "auto": "textual-dark",
    "dark": "textual-dark",
    "light": "textual-light",
    "ansi": "ansi-dark",
}

DEFAULT = "textual-dark"


def chosen_theme(wanted: str | None, file_of_last: Path, known: Collection[str]) -> str:
    """The theme's full name.

    Args:
        wanted: what the user named, short or in full.
        file_of_last: the file with the last one used.
        known: Textual's themes.

    Raises:
        InvalidParams: there is no such theme.
    """
    if wanted is not None:
        name = SHORT_NAMES.get(wanted, wanted)
        if name not in known:
            raise InvalidParams(
                "--theme", f"must be one of {', '.join([*SHORT_NAMES, *sorted(known)])}"
            )
        return name
    with suppress(OSError, UnicodeDecodeError):
        name = file_of_last.read_text(encoding="utf-8").strip()
        if name in known:
            return name
    return DEFAULT


def save_theme(name: str, file: Path) -> None:
    """Save the theme for the next start; a disk that cannot is no reason to stop."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name + "\n", encoding="utf-8")
