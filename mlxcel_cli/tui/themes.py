"""Which theme the screen has: the one asked for, else the one of last time."""

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


def chosen_theme(asked: str | None, remembered: Path, known: Collection[str]) -> str:
    """The theme's full name.

    Args:
        asked: what the user named, short or in full.
        remembered: the file that holds the last one.
        known: Textual's themes.

    Raises:
        InvalidParams: there is no such theme.
    """
    if asked is not None:
        name = SHORT_NAMES.get(asked, asked)
        if name not in known:
            raise InvalidParams(
                "--theme", f"must be one of {', '.join([*SHORT_NAMES, *sorted(known)])}"
            )
        return name
    with suppress(OSError, UnicodeDecodeError):
        name = remembered.read_text(encoding="utf-8").strip()
        if name in known:
            return name
    return DEFAULT


def remember_theme(name: str, file: Path) -> None:
    """Keep the theme for the next time; a disk that cannot is no reason to stop."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name + "\n", encoding="utf-8")
