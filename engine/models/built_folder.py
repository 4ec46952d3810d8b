"""Builds a folder whole or not at all, once, however many processes ask; its stamp says of what.

The folder is built next to its place under a temporary name and renamed when it is complete. A lock
file next to it lets one process build while others wait and then find the work done. What a killed
process left is removed by the next builder: only the holder of the lock makes such folders.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.models.progress import Progress, ProgressReport, no_report

POLL_S = 0.1
"""How often a waiting process asks for the lock: a blocking wait could not be interrupted."""

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


def create_folder(
    target: Path,
    build: Callable[[Path], None],
    *,
    is_current: Callable[[Path], bool],
    progress: ProgressReport = no_report,
) -> bool:
    """Make ``target`` by ``build`` unless it is there and current.

    Args:
        target: the folder to make; its parents are made as needed.
        build: fills the empty folder it is given. What it raises leaves nothing behind.
        is_current: whether an existing folder may stay; one that may not is replaced.
        progress: called while another process is building.

    Returns:
        Whether this call built the folder.

    Raises:
        OSError: the place cannot be written.
    """
    if is_current(target):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target, progress):
        if is_current(target):
            return False
        _remove_leftovers(target)
        temporary = target.with_name(f"{_prefix(target)}{os.getpid()}")
        temporary.mkdir()
        try:
            build(temporary)
            _put_in_place(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


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


def _prefix(target: Path) -> str:
    return f".{target.name}.making-"


@contextmanager
def _lock(target: Path, progress: ProgressReport) -> Iterator[None]:
    with target.with_name(f".{target.name}.lock").open("w") as file:
        while not _try_lock(file.fileno()):
            progress(Progress(f"waiting for another process to make {target.name}", 0, None))
            time.sleep(POLL_S)
        # Closing the file, which a dying process does too, gives the lock back.
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_leftovers(target: Path) -> None:
    for entry in target.parent.iterdir():
        if entry.name.startswith(_prefix(target)):
            shutil.rmtree(entry, ignore_errors=True)


def _put_in_place(temporary: Path, target: Path) -> None:
    if target.exists():
        # A folder that is not empty cannot be replaced in one step: the old one is moved first.
        replaced = temporary.with_name(f"{temporary.name}-old")
        target.rename(replaced)
        temporary.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        temporary.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
