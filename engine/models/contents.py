"""Digests of a model's files, so that what was computed with them is bound to every byte.

Large files are read once: their digests are kept in the cache folder under what the file system
says of each file, and any write to a file changes that.
"""

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import astuple, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DIGESTS = "file-digests.json"
"""The file of the kept digests, in the cache folder."""

LARGE_BYTES = 2**20
"""Files from this size on are not read again while they are the same."""

KEPT_DIGESTS = 1024
"""Most digests that are kept; the oldest go first."""

LIBRARIES = ("mlxcel", "mlx", "mlx-lm")
"""Other versions of them may compute other numbers of the same files."""


@dataclass(frozen=True, slots=True)
class FileState:
    """What the file system says of one file; a write changes it."""

    name: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def key(self) -> str:
        """Under which its digest is kept: everything but the name."""
        return ":".join(map(str, astuple(self)[1:]))


def file_states(folder: Path) -> tuple[FileState, ...]:
    """The state of every file of a model's folder but hidden ones and its documents, by name."""
    found = []
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.suffix.lower() == ".md":
                continue
            with suppress(OSError):
                if path.is_file():
                    stat = path.stat()
                    found.append(
                        FileState(
                            path.name,
                            stat.st_dev,
                            stat.st_ino,
                            stat.st_size,
                            stat.st_mtime_ns,
                            stat.st_ctime_ns,
                        )
                    )
    return tuple(found)


def contents_digest(folder: Path, loaded: tuple[FileState, ...], cache_home: Path) -> str:
    """A digest of every byte of a model's files, their names and the libraries' versions.

    Args:
        folder: the model's.
        loaded: `file_states` when it was loaded. Where the files are others by now, nobody can say
            what is in memory, and the digest is one that no other call ever gives.
        cache_home: mlxcel's cache folder.
    """
    kept = _KeptDigests(cache_home / DIGESTS)
    digest = hashlib.sha256()
    for name in LIBRARIES:
        digest.update(f"{name} {_version(name)}\n".encode())
    try:
        for state in loaded:
            digest.update(f"{state.name}\0{kept.of(folder, state)}\n".encode())
    except OSError:
        return secrets.token_hex(16)
    if file_states(folder) != loaded:
        return secrets.token_hex(16)
    kept.save()
    return digest.hexdigest()[:32]


class _KeptDigests:
    """SHA-256 of large files, from earlier runs and of this one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests: dict[str, str] = {}
        self._is_changed = False
        with suppress(OSError, ValueError, AttributeError):
            read = json.loads(path.read_text(encoding="utf-8"))
            self._digests = {str(key): str(digest) for key, digest in read.items()}

    def of(self, folder: Path, state: FileState) -> str:
        """The digest of a file.

        Raises:
            OSError: it cannot be read.
        """
        known = self._digests.get(state.key) if state.size >= LARGE_BYTES else None
        if known is not None:
            return known
        with (folder / state.name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if state.size >= LARGE_BYTES:
            self._digests[state.key] = found
            self._is_changed = True
        return found

    def save(self) -> None:
        """Keep what is new; a folder that cannot be written loses it silently."""
        if not self._is_changed:
            return
        newest = dict(list(self._digests.items())[-KEPT_DIGESTS:])
        part = self._path.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.touch(mode=0o600)
            part.write_text(json.dumps(newest), encoding="utf-8")
            part.replace(self._path)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
