"""Keeps runs of KV in a folder, so that a server that starts again knows what it had read.

The engine thread looks files up and reads them; a thread of its own writes them, so that no answer
waits for the disk. What is there when it starts is taken by its name, and checked when it is read:
what is damaged or foreign is left alone or removed, with a notice, and is as good as absent. The
folder never takes more than its bound: what was not used for longest goes first.
"""

import hashlib
import logging
import os
import re
import threading
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue

from engine.errors import SnapshotCorrupt
from engine.kv.storage import RowSnapshot
from engine.prompt_cache.key import CacheScope
from engine.prompt_cache.radix import agreed
from engine.prompt_cache.run_file import (
    RunHead,
    RunKey,
    RunRecord,
    decode_run,
    encoded,
    read_content,
    read_head,
    write_run,
)

logger = logging.getLogger(__name__)

SUFFIX = ".kvrun"
QUEUED_RUNS = 32
"""Runs that wait to be written; more are not kept, so that memory stays bounded."""

_NAME = re.compile(r"([0-9a-f]{40})-(\d+)-(\d+)\.kvrun")
_PART = re.compile(r"\.[0-9a-f]{40}-\d+-\d+\.kvrun\.(\d+)\.part")


@dataclass(slots=True)
class _File:
    """A file of the folder."""

    head: RunHead
    nbytes: int
    used_ns: int


class DiskTier:
    """Runs in a folder.

    Args:
        folder: made if it is not there; nothing but this uses it.
        max_bytes: most bytes of its files.

    Raises:
        OSError: the folder cannot be made or read.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        """Over the files and their bytes: the writer adds, the engine thread drops."""
        self._files: dict[RunKey, _File] = {}
        self.nbytes = 0
        """Bytes of all files."""
        self.faults = 0
        """Files that could not be written or read."""
        folder.mkdir(parents=True, exist_ok=True)
        self._scan()
        self._make_room(0)
        self._queue: Queue[tuple[RunHead, RunRecord] | None] = Queue(QUEUED_RUNS)
        self._writer = threading.Thread(target=self._write_all, name="prompt-cache", daemon=True)
        self._writer.start()

    # -- the engine thread's side

    def find(
        self, scope: CacheScope, ids: tuple[int, ...], reach: int, *, cuts: bool = True
    ) -> list[tuple[RunKey, int]]:
        """Runs that continue from the first ``reach`` tokens of ``ids``, each with where it parts.

        Args:
            scope: where to look.
            ids: a prompt.
            reach: how much of it is known already.
            cuts: whether the beginning of a run is of use.
        """
        with self._lock:
            heads = [file.head for file in self._files.values()]
        digests = path_digests(scope, ids, {head.key.start for head in heads})
        fitting: list[tuple[RunKey, int]] = []
        for head in heads:
            if digests.get(head.key.start) == head.parent:
                end = head.key.start + agreed(head.ids, ids[head.key.start : head.key.stop])
                if cuts or end == head.key.stop:
                    fitting.append((head.key, end))
        chain: list[tuple[RunKey, int]] = []
        while True:
            ahead = [(key, end) for key, end in fitting if key.start <= reach < end]
            if not ahead:
                return chain
            chain.append(max(ahead, key=lambda one: one[1]))
            reach = chain[-1][1]

    def content(self, key: RunKey) -> bytes | None:
        """A run's file, read and summed on any thread; None, with a notice, if it is damaged."""
        path = self._path(key)
        try:
            content = read_content(path)
            os.utime(path)
        except (SnapshotCorrupt, OSError) as error:
            self._ignore(key, error)
            return None
        with self._lock:
            if key in self._files:
                self._files[key].used_ns = path.stat().st_mtime_ns if path.exists() else 0
        return content

    def decoded(self, key: RunKey, content: bytes) -> RowSnapshot | None:
        """The KV of a run's file; None, with a notice, if it is not what its name says."""
        try:
            return decode_run(self._path(key), content, key)
        except SnapshotCorrupt as error:
            self._ignore(key, error)
            return None

    def _ignore(self, key: RunKey, error: Exception) -> None:
        logger.warning("a prompt cache file is ignored: %s", error)
        self._drop(key)
        self.faults += 1

    def keep(self, scope: CacheScope, ids: tuple[int, ...], kv: RowSnapshot) -> None:
        """Have KV of the last ``kv.tokens`` of ``ids`` written, unless it is there.

        Raises:
            EvalFailed: the backend threw.
        """
        start, stop = len(ids) - kv.tokens, len(ids)
        digests = path_digests(scope, ids, {start, stop})
        run = RunHead(RunKey(digests[stop], start, stop), digests[start], ids[start:])
        if run.key in self._files or self._queue.full():
            return
        with suppress(Full):
            self._queue.put_nowait((run, encoded(run, kv)))

    def clear(self) -> None:
        """Remove every file."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        for key in list(self._files):
            self._drop(key)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, and end the writer."""
        self._queue.put(None)
        self._writer.join(timeout_s)

    @property
    def entries(self) -> int:
        """Files there are."""
        return len(self._files)

    # -- the writer's side

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._write(*item)
            except OSError as error:
                self.faults += 1
                logger.warning("a prompt cache file could not be written: %s", error)

    def _write(self, run: RunHead, record: RunRecord) -> None:
        if record.nbytes > self._max_bytes:
            return
        self._make_room(record.nbytes)
        path = self._path(run.key)
        write_run(record, path)
        self._note(run, path)

    # -- both

    def _note(self, run: RunHead, path: Path) -> None:
        state = path.stat()
        with self._lock:
            if run.key not in self._files:
                self.nbytes += state.st_size
            self._files[run.key] = _File(run, state.st_size, state.st_mtime_ns)

    def _make_room(self, nbytes: int) -> None:
        while self.nbytes + nbytes > self._max_bytes and self._files:
            with self._lock:
                oldest = min(self._files.values(), key=_last_use)
            self._drop(oldest.head.key)

    def _drop(self, key: RunKey) -> None:
        with self._lock:
            file = self._files.pop(key, None)
            if file is not None:
                self.nbytes -= file.nbytes
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: RunKey) -> Path:
        return self._folder / f"{key.path}-{key.start}-{key.stop}{SUFFIX}"

    def _take(self, key: RunKey, path: Path) -> None:
        """Note a file that was there, if it is what its name says."""
        try:
            run = _head_of(path, key)
        except SnapshotCorrupt as error:
            logger.warning("a prompt cache file is removed: %s", error)
            self.faults += 1
            path.unlink(missing_ok=True)
        else:
            self._note(run, path)

    def _scan(self) -> None:
        foreign = 0
        for path in sorted(self._folder.iterdir()):
            with suppress(OSError):
                if (name := _NAME.fullmatch(path.name)) is not None:
                    self._take(RunKey(name[1], int(name[2]), int(name[3])), path)
                elif (part := _PART.fullmatch(path.name)) is not None:
                    _remove_if_left(path, int(part[1]))
                else:
                    foreign += 1
        if foreign:
            logger.warning("%d files in %s are not the prompt cache's", foreign, self._folder)


def _head_of(path: Path, key: RunKey) -> RunHead:
    run = read_head(path)
    if run.key != key or len(run.ids) != key.stop - key.start:
        raise SnapshotCorrupt(path, "is of other tokens")
    return run


def _last_use(file: _File) -> tuple[int, int]:
    """Of runs that were used together, the ends go first."""
    return file.used_ns, -file.head.key.stop


def path_digests(scope: CacheScope, ids: tuple[int, ...], stops: Iterable[int]) -> dict[int, str]:
    """For each of ``stops``, the digest of a scope and the first so many of ``ids``."""
    running = hashlib.sha256(repr(scope).encode())
    content, done = array("q", ids).tobytes(), 0
    digests = {}
    for stop in sorted(stop for stop in stops if stop <= len(ids)):
        running.update(content[8 * done : 8 * stop])
        done = stop
        digests[stop] = running.hexdigest()[:40]
    return digests


def _remove_if_left(path: Path, pid: int) -> None:
    """Remove what a writer that is gone has left half written."""
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
