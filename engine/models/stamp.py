"""What a converted folder says about itself, so that a stale one is made anew."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

FORMAT = 1
"""Counts up when a conversion changes what it writes: older folders are then rebuilt."""

STAMP_FILE = "mlxcel.json"

_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where a folder came from and what its conversion wants known."""

    source: str
    """Identifies the content the folder was made from."""

    notes: tuple[str, ...]
    """What was decided on the way, one sentence each."""


def write_stamp(folder: Path, stamp: Stamp) -> None:
    """Write the stamp into ``folder``; the last act of a conversion."""
    content = {"format": FORMAT, "source": stamp.source, "notes": list(stamp.notes)}
    (folder / STAMP_FILE).write_text(json.dumps(content, indent=2) + "\n")


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp in ``folder``; None where there is none of this format."""
    try:
        content = json.loads((folder / STAMP_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    match content:
        case {"format": int(number), "source": str(source), "notes": list(notes)}:
            return Stamp(source, tuple(map(str, notes))) if number == FORMAT else None
        case _:
            return None


def is_made_from(folder: Path, identity: str) -> bool:
    """Whether ``folder`` is a complete conversion, by this version, of that source."""
    stamp = read_stamp(folder)
    return stamp is not None and stamp.source == identity


def fingerprint(file: Path) -> str:
    """Identifies a large file by its size, its first and its last MiB.

    The first holds the metadata of a GGUF, the last its weights; reading it all would take as
    long as converting it.
    """
    byte_count = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        digest.update(opened.read(_SAMPLE_BYTES))
        opened.seek(max(0, byte_count - _SAMPLE_BYTES))
        digest.update(opened.read(_SAMPLE_BYTES))
    return f"{byte_count}-{digest.hexdigest()}"
