"""Brings runs of KV from the folder into memory while others decode.

A thread reads and sums the files, one at a time; the engine thread makes arrays of what was read.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from engine.errors import RowError, SnapshotError, UnsupportedModel
from engine.prompt_cache.disk import DiskTier
from engine.prompt_cache.key import CacheScope
from engine.prompt_cache.limits import CacheCounters
from engine.prompt_cache.run_file import RunKey
from engine.prompt_cache.spans import part
from engine.prompt_cache.store import KvStore

COPY_ERRORS = (SnapshotError, RowError, UnsupportedModel)
"""What a copy that fails raises; the text is not cached, and that is all."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file that is being read."""

    key: RunKey
    scope: CacheScope
    ids: tuple[int, ...]
    """The prompt up to where the run parts from it."""
    content: "Future[bytes | None]"

    def is_of(self, scope: CacheScope, ids: tuple[int, ...]) -> bool:
        """Whether it is for a prompt."""
        return self.scope == scope and self.ids == ids[: len(self.ids)]


class RunFetcher:
    """Fetches what continues what is in memory.

    Args:
        disk: the folder.
        store: where it goes.
        counters: counts it.
        cuts: whether KV can be cut.
    """

    def __init__(
        self, disk: DiskTier, store: KvStore, counters: CacheCounters, *, cuts: bool
    ) -> None:
        self._disk = disk
        self._store = store
        self._counters = counters
        self._cuts = cuts
        self._thread = ThreadPoolExecutor(1, "prompt-cache-reader")
        self._reading: _Reading | None = None

    @property
    def is_reading(self) -> bool:
        """Whether a file is being read, or waits to be taken."""
        return self._reading is not None

    def fetch(
        self, scope: CacheScope, ids: tuple[int, ...], tried: set[RunKey], *, waits: bool
    ) -> bool:
        """Whether all of the folder that continues a prompt is in memory; reads on if not.

        Args:
            scope: the request's.
            ids: the prompt but its last token.
            tried: the runs that were read for this request; none is read twice.
            waits: whether to wait for the files instead.
        """
        while True:
            if self._reading is not None:
                if waits or self._reading.content.done():
                    self._take(self._reading)
                elif self._reading.is_of(scope, ids):
                    return False
            run = self._next(scope, ids, tried)
            if run is None:
                return True
            if self._reading is not None:  # for another prompt
                return False
            key, end = run
            tried.add(key)
            content = self._thread.submit(self._disk.content, key)
            self._reading = _Reading(key, scope, ids[:end], content)

    def forget(self) -> None:
        """Drop what is being read."""
        self._reading = None

    def close(self) -> None:
        """End the thread."""
        self._reading = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(
        self, scope: CacheScope, ids: tuple[int, ...], tried: set[RunKey]
    ) -> tuple[RunKey, int] | None:
        reach = self._store.covered(scope, ids)
        chain = self._disk.find(scope, ids, reach, cuts=self._cuts)
        return chain[0] if chain and chain[0][0] not in tried else None

    def _take(self, reading: _Reading) -> None:
        """Hold the part of a run that is of its prompt and not known yet."""
        self._reading = None
        content = reading.content.result()
        kv = None if content is None else self._disk.decoded(reading.key, content)
        reach, end = self._store.covered(reading.scope, reading.ids), len(reading.ids)
        if kv is None or not reading.key.start <= reach < end:
            return
        try:
            if self._cuts:
                begin = reading.key.start
                run = part(kv, reach - begin, end - begin)
                is_held = self._store.put_run(reading.scope, reading.ids, run)
            else:
                is_held = self._store.put_whole(reading.scope, reading.ids, part(kv))
        except COPY_ERRORS:
            self._counters.faults += 1
        else:
            self._counters.disk_tokens += is_held * (end - reach)
