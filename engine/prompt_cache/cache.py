"""The prompt cache: rows begin with cached KV, and their own is exported when they end well.

Rules (each pinned by a test):
    C1  A cached prefix is copied into the row's own storage: nothing here is ever changed, and may
        be dropped while rows run that began with it.
    C2  At least the prompt's last token is forwarded, cold or warm.
    C3  Only committed tokens are cached, of a row that ended well; never after an error or a
        failed rewind.
    C4  Held bytes never exceed the bound; what two texts share is held once.
    C5  A text is found only by requests of its scope (`CacheScope`).
A row that ends is exported run by run, so that a long one delays nobody: until then it keeps its
KV. A cache without limits, and a request that does not use it, are plain rows of the engine.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import InvalidParams, RowError, SnapshotError
from engine.kv.storage import RowSnapshot
from engine.outcome import SeqId
from engine.prompt_cache.disk import DiskTier
from engine.prompt_cache.fetch import COPY_ERRORS, RunFetcher
from engine.prompt_cache.key import CacheScope, CacheUse
from engine.prompt_cache.limits import CacheCounters, CacheLimits, CacheStats
from engine.prompt_cache.radix import agreed
from engine.prompt_cache.run_file import RunKey
from engine.prompt_cache.store import KvStore

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.params import SequenceParams
    from engine.rows import RowHooks
    from engine.text.row_text import RowText

WHOLE_KINDS = frozenset({"ring", "recurrent"})
"""Kinds of storage whose rows exist only as a whole."""

SOLO_KIND = "one row at a time"
"""The kind of storage whose rows cannot be taken out."""

RUN_TOKENS = 256
"""Most tokens of one copy, and of one node: runs end at multiples of it."""

COPY_SECONDS = 0.008
"""How long one `PromptCache.advance` continues to start copies."""

UNNAMED = CacheUse()
"""A request that named nothing: it shares with all others of its kind."""


@dataclass(slots=True)
class _OpenRow:
    """An open row of a request that uses the cache."""

    scope: CacheScope
    boundary: int
    """Where KV that cannot be cut is kept, so that the next turn finds it."""
    kept: tuple[tuple[int, ...], RowSnapshot] | None = None
    """That KV."""


@dataclass(slots=True)
class _Export:
    """A row that has ended and is being exported."""

    seq: SeqId
    scope: CacheScope
    ids: tuple[int, ...]
    """What its KV is of."""


class PromptCache:
    """KV of prompts and answers of one engine. All calls come from the engine thread.

    Args:
        engine: where the rows live.
        limits: the bounds; None: nothing is cached.
        clock: seconds, monotonic.

    Raises:
        InvalidParams: the folder of the limits cannot be used.
    """

    def __init__(
        self,
        engine: "Engine",
        limits: CacheLimits | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._is_on = limits is not None
        self._limits = CacheLimits() if limits is None else limits
        self._clock = clock
        self._counters = CacheCounters()
        self._cuts = engine.choice.kind not in WHOLE_KINDS
        self._store = KvStore(self._limits, self._counters, clock, cuts=self._cuts)
        self._disk = None if self._limits.folder is None else _disk_tier(self._limits)
        self._fetcher: RunFetcher | None = None
        if self._disk is not None:
            self._fetcher = RunFetcher(self._disk, self._store, self._counters, cuts=self._cuts)
        # Only what outlives the process has to say which model it is of.
        self._model = None if self._disk is None else engine.transfer.fingerprint
        self._rows: dict[SeqId, _OpenRow] = {}
        self._exports: deque[_Export] = deque()

    # -- rows begin

    def covered(self, params: "SequenceParams", use: CacheUse | None) -> int:
        """Tokens of a request's prompt that are cached now; none where it does not use the cache.

        Raises:
            EvalFailed: the backend threw.
        """
        if use is None or not self._store.entries:
            return 0
        tokens = self._store.covered(self._scope(use), params.prompt_ids[:-1])
        return tokens if tokens >= self._limits.min_tokens else 0

    def is_ready(
        self, params: "SequenceParams", use: CacheUse | None, tried: set[RunKey], *, waits: bool
    ) -> bool:
        """Whether all that is cached of a prompt, or is being exported, can be used by `open` now.

        Until then the request waits, instead of the rows that run: exports advance run by run, and
        a thread reads files.

        Args:
            params: the request.
            use: how it uses the cache.
            tried: the files that were read for it.
            waits: whether to wait here; nobody else does.
        """
        if use is None or not self._is_on:
            return True
        scope, ids = self._scope(use), params.prompt_ids[:-1]
        while self._awaits_export(scope, ids):
            if not waits:
                return False
            self._export_next_run()
        fetcher = self._fetcher
        return fetcher is None or fetcher.fetch(scope, ids, tried, waits=waits)

    def _awaits_export(self, scope: CacheScope, ids: tuple[int, ...]) -> bool:
        """Whether a row that has ended is to leave more of a prompt than is cached now."""
        reach = max(self._store.covered(scope, ids), self._limits.min_tokens - 1)
        return any(
            export.scope == scope and agreed(export.ids, ids) > reach for export in self._exports
        )

    @property
    def changes(self) -> int:
        """A number that is another whenever `covered` may be."""
        return self._store.changes

    def open(
        self,
        params: "SequenceParams",
        *,
        text: "RowText | None" = None,
        hooks: "RowHooks | None" = None,
        use: CacheUse | None = UNNAMED,
    ) -> SeqId:
        """`Engine.open`, with as much KV as is known; `Engine.cached_tokens` says how much.

        Args:
            params: the request.
            text: its decoder and stop strings.
            hooks: what a feature decides for the row.
            use: how the request uses the cache; None: it does not.

        Raises:
            InvalidParams, ContextOverflow: as `Engine.open`.
            EvalFailed: the backend threw; nothing is cached any more.
        """
        if use is None or not self._is_on:
            return self._engine.open(params, text=text, hooks=hooks)
        scope = self._scope(use)
        seq = self._opened_with_prefix(params, scope, text, hooks)
        if seq is None:
            seq = self._engine.open(params, text=text, hooks=hooks)
        self._rows[seq] = _OpenRow(scope, _boundary(params, use))
        cached = self._engine.cached_tokens(seq)
        counters = self._counters
        counters.lookups += 1
        counters.lookup_tokens += len(params.prompt_ids)
        counters.hits += cached > 0
        counters.hit_tokens += cached
        return seq

    def resume(self, seq: SeqId, params: "SequenceParams", use: CacheUse | None) -> None:
        """A row that was preempted is open again: it is cached like those opened here."""
        if use is not None and self._is_on:
            self._rows[seq] = _OpenRow(self._scope(use), _boundary(params, use))

    def drop(self, seq: SeqId) -> None:
        """A row was closed elsewhere: nothing of it is cached."""
        self._rows.pop(seq, None)

    def boundary(self, seq: SeqId) -> int | None:
        """Where a chunk of the row's prompt has to end; None: anywhere."""
        row = self._rows.get(seq)
        return None if row is None or self._cuts else row.boundary

    def at_piece(self, seq: SeqId, done_tokens: int) -> None:
        """A chunk of a prompt is prefilled: KV that cannot be cut later is kept at the boundary."""
        row = self._rows.get(seq)
        if row is None or self._cuts or done_tokens != row.boundary:
            return
        try:
            row.kept = self._engine.transfer.export_committed(seq)
        except COPY_ERRORS:
            self._counters.faults += 1

    # -- rows end

    def close(self, seq: SeqId, *, keeps: bool) -> None:
        """End a row and free it, now or once `advance` has exported it.

        Args:
            seq: a row that was opened here or not; what it has in flight is taken back.
            keeps: whether it ended well, and its KV may be cached.
        """
        row = self._rows.pop(seq, None)
        if row is None or not keeps or self._engine.choice.kind == SOLO_KIND:
            self._engine.close(seq)
            return
        try:
            ids = self._engine.transfer.finish_row(seq)
            if len(ids) < self._limits.min_tokens:
                ids = ()
            elif not self._cuts:
                self._keep_whole(seq, row)
        except COPY_ERRORS:
            self._counters.faults += 1
            ids = ()
        except BaseException:
            self._engine.close(seq)
            raise
        self._counters.exports += bool(ids)
        if ids and self._cuts:
            self._exports.append(_Export(seq, row.scope, ids))
        else:
            self._engine.close(seq)

    @property
    def is_copying(self) -> bool:
        """Whether rows that have ended are still open, or files are being read."""
        return bool(self._exports) or (self._fetcher is not None and self._fetcher.is_reading)

    def advance(self, seconds: float = COPY_SECONDS) -> None:
        """Export some runs of rows that have ended, at least one."""
        end_s = self._clock() + seconds
        while self._exports:
            self._export_next_run()
            if self._clock() >= end_s:
                return

    def settle(self) -> None:
        """Export all that is left of rows that have ended."""
        while self._exports:
            self._export_next_run()

    # -- all of it

    def reset(self) -> None:
        """Drop everything that is cached, files too."""
        self.forget()
        if self._disk is not None:
            self._disk.clear()

    def shut_down(self) -> None:
        """Write what waits to be written, and end; rows may still be closed."""
        self.settle()
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None

    def forget(self) -> None:
        """Drop everything that is in memory, and the memory it takes."""
        while self._exports:
            self._engine.close(self._exports.popleft().seq)
        for row in self._rows.values():
            row.kept = None
        self._store.clear()
        if self._fetcher is not None:
            self._fetcher.forget()

    @property
    def nbytes(self) -> int:
        """Bytes of the KV that is held."""
        return self._store.nbytes

    def stats(self) -> CacheStats | None:
        """A snapshot for status pages; None where nothing is ever cached."""
        if not self._is_on:
            return None
        self._store.expire()
        disk = self._disk
        return CacheStats(
            limits=self._limits,
            counters=self._counters.snapshot(),
            entries=self._store.entries,
            tokens=self._store.tokens,
            nbytes=self._store.nbytes,
            pending=len(self._exports),
            disk_entries=0 if disk is None else disk.entries,
            disk_bytes=0 if disk is None else disk.nbytes,
            disk_faults=0 if disk is None else disk.faults,
        )

    # -- internals

    def _scope(self, use: CacheUse) -> CacheScope:
        return CacheScope.of(self._model, use)

    def _opened_with_prefix(
        self,
        params: "SequenceParams",
        scope: CacheScope,
        text: "RowText | None",
        hooks: "RowHooks | None",
    ) -> SeqId | None:
        kv = self._store.find(scope, params.prompt_ids[:-1])
        if kv is None or kv.tokens < self._limits.min_tokens:
            self._counters.rejects_prefix_too_short += kv is not None
            return None
        try:
            return self._engine.transfer.open_with_kv(params, kv, text=text, hooks=hooks)
        except SnapshotError:
            self._counters.faults += 1
            return None
        except RowError:
            self._counters.faults += 1
            self.forget()
            raise

    def _keep_whole(self, seq: SeqId, row: _OpenRow) -> None:
        for export in (row.kept, self._engine.transfer.export_committed(seq)):
            if export is None or len(export[0]) < self._limits.min_tokens:
                continue
            ids, kv = export
            self._counters.exported_tokens += len(ids)
            if self._store.put_whole(row.scope, ids, kv) and self._disk:
                self._disk.keep(row.scope, ids, kv)

    def _export_next_run(self) -> None:
        """Export the next run of the first row; free it when there is nothing left."""
        export = self._exports[0]
        try:
            has_more = self._exported_run(export)
        except COPY_ERRORS:
            self._counters.faults += 1
            has_more = False
        except BaseException:
            self._end(export)
            raise
        if not has_more:
            self._end(export)

    def _exported_run(self, export: _Export) -> bool:
        """Whether there is more to export."""
        start = self._store.covered(export.scope, export.ids)
        if start == len(export.ids):
            return False
        stop = min(len(export.ids), (start // RUN_TOKENS + 1) * RUN_TOKENS)
        kv = self._engine.transfer.export_run(export.seq, start, stop)
        if not self._store.put_run(export.scope, export.ids[:stop], kv):
            return False
        self._counters.exported_tokens += kv.tokens
        if self._disk is not None:
            self._disk.keep(export.scope, export.ids[:stop], kv)
        return stop < len(export.ids)

    def _end(self, export: _Export) -> None:
        self._exports.remove(export)
        self._engine.close(export.seq)


def _disk_tier(limits: CacheLimits) -> DiskTier:
    assert limits.folder is not None
    try:
        return DiskTier(limits.folder, limits.folder_bytes)
    except OSError as error:
        raise InvalidParams("prompt_cache_dir", f"cannot be used: {error}") from error


def _boundary(params: "SequenceParams", use: CacheUse) -> int:
    last = len(params.prompt_ids) - 1
    history = use.history_tokens
    return history if history is not None and 0 < history < last else last
