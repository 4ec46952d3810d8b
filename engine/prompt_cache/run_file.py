"""One run of KV in a file: whole and unaltered, or refused.

A file is a magic word, the length of a header, the header as JSON, the bytes of every array and a
SHA-256 over all of it. It is made on the engine thread and written on any: nothing of MLX is in it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from engine import guard
from engine.errors import SnapshotCorrupt
from engine.kv.plain import PLAIN_ERRORS
from engine.kv.storage import RowSnapshot
from engine.models.form import dtype_name

MAGIC = b"mlxcelKV"
VERSION = 1
"""Raised whenever a file of the version before would be read wrongly."""
DIGEST_BYTES = 32
LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which tokens a run is of."""

    path: str
    """Digest of the scope and of all tokens up to the run's end."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RunHead:
    """What a file says of its run."""

    key: RunKey
    parent: str
    """Digest of the scope and of all tokens before the run."""
    ids: tuple[int, ...]
    """The run's own tokens."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as bytes."""

    head: bytes
    arrays: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Length of the file."""
        return len(self.head) + sum(map(len, self.arrays)) + DIGEST_BYTES


def encoded(run: RunHead, kv: RowSnapshot) -> RunRecord:
    """The record of a run; waits for the device.

    Raises:
        EvalFailed: the backend threw.
    """
    header = {
        "version": VERSION,
        "path": run.key.path,
        "start": run.key.start,
        "stop": run.key.stop,
        "parent": run.parent,
        "ids": list(run.ids),
        "overshoot": kv.overshoot,
        "is_whole": kv.is_whole,
        "layers": [[[dtype_name(a.dtype), list(a.shape)] for a in held] for held in kv.layers],
    }
    text = json.dumps(header).encode()
    head = MAGIC + len(text).to_bytes(LENGTH_BYTES, "little") + text
    return RunRecord(head, tuple(guard.read_bytes(a) for held in kv.layers for a in held))


def write_run(record: RunRecord, path: Path) -> None:
    """Write a record; the file has its name only once all of it is on the disk.

    Raises:
        OSError: the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    sha = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            for part in (record.head, *record.arrays):
                sha.update(part)
                file.write(part)
            file.write(sha.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_head(path: Path) -> RunHead:
    """What a file is of; its checksum is not looked at.

    Raises:
        SnapshotCorrupt: it is no such file, or not all of its header is there.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(len(MAGIC) + LENGTH_BYTES)
        text = file.read(int.from_bytes(start[len(MAGIC) :], "little"))
    if not start.startswith(MAGIC):
        raise SnapshotCorrupt(path, "is no file of a prompt cache")
    try:
        header = json.loads(text)
        key = RunKey(str(header["path"]), int(header["start"]), int(header["stop"]))
        return RunHead(key, str(header["parent"]), tuple(map(int, header["ids"])))
    except PLAIN_ERRORS as error:
        raise SnapshotCorrupt(path, f"is malformed: {error}") from error


def read_content(path: Path) -> bytes:
    """The bytes of a file that is whole; for any thread.

    Raises:
        SnapshotCorrupt: it is damaged or cut off.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise SnapshotCorrupt(path, "is no file of a prompt cache")
    body = np.frombuffer(content, np.uint8)[:-DIGEST_BYTES]
    if hashlib.sha256(body.data).digest() != content[-DIGEST_BYTES:]:
        raise SnapshotCorrupt(path, "is damaged: its checksum is another")
    return content


def decode_run(path: Path, content: bytes, key: RunKey) -> RowSnapshot:
    """The KV of a file's content, if it was written for ``key``.

    Raises:
        SnapshotCorrupt: it is of another version, or of other tokens.
    """
    body = np.frombuffer(content, np.uint8)[:-DIGEST_BYTES]
    begin = len(MAGIC) + LENGTH_BYTES
    end = begin + int.from_bytes(content[len(MAGIC) : begin], "little")
    try:
        header = json.loads(content[begin:end])
        if (header["version"], header["path"]) != (VERSION, key.path):
            raise SnapshotCorrupt(path, "is of another version, or of other tokens")
        if (header["start"], header["stop"]) != (key.start, key.stop):
            raise SnapshotCorrupt(path, "is of other tokens")
        arrays = _arrays(body[end:], [one for held in header["layers"] for one in held])
        layers = tuple(tuple(next(arrays) for _ in held) for held in header["layers"])
        overshoot, is_whole = int(header["overshoot"]), bool(header["is_whole"])
    except PLAIN_ERRORS as error:
        raise SnapshotCorrupt(path, f"is malformed: {error}") from error
    return RowSnapshot(key.stop - key.start, layers, overshoot, is_whole=is_whole)


def _arrays(content: np.ndarray, shapes: list[Any]) -> Iterator[mx.array]:
    at = 0
    for dtype, shape in shapes:
        kind = getattr(mx, dtype)
        size = int(np.prod(shape)) * kind.size
        flat = mx.array(content[at : at + size])
        yield flat.view(kind).reshape(shape)
        at += size
