"""The prompt cache: rows begin with KV that is known, and leave theirs when they end well.

Rules (each pinned by a test):
    C1  What is taken over is copied into the row's own storage: nothing here is ever changed, and
        may be dropped while rows run that began with it.
    C2  At least the prompt's last token is forwarded, cold or warm.
    C3  Only committed tokens are remembered, of a row that ended well; never after an error or a
        failed rewind.
    C4  Held bytes never exceed the bound; what two texts share is held once.
    C5  A text is found only by requests of its scope (`CacheScope`).
A row that ends is copied run by run, so that a long one delays nobody: until then it keeps its KV.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import InvalidParams, RowError, SnapshotError, UnsupportedModel
from engine.kv.storage import RowSnapshot
from engine.kv.transfer import CachedPrefix
from engine.outcome import SeqId
from engine.prompt_cache.disk import DiskTier
from engine.prompt_cache.key import CacheScope, CacheUse
from engine.prompt_cache.limits import CacheCounters, CacheLimits, CacheStats
from engine.prompt_cache.spans import part
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
"""How long one `PromptCache.advance` goes on starting copies."""

COPY_ERRORS = (SnapshotError, RowError, UnsupportedModel)
"""What a copy that fails raises; the text is not remembered, and that is all."""


@dataclass(slots=True)
class _Row:
    """An open row that was opened here."""

    scope: CacheScope
    boundary: int
    """Where KV that cannot be cut is kept, so that the next turn finds it."""
    kept: CachedPrefix | None = None
    """That KV."""


@dataclass(slots=True)
class _Donor:
    """A row that has ended and is being copied."""

    seq: SeqId
    scope: CacheScope
    ids: tuple[int, ...]
    """What its KV is of."""


class PromptCache:
    """KV of prompts and answers of one engine. All calls come from the engine thread.

    Args:
        engine: where the rows live.
        limits: the bounds.
        clock: seconds, monotonic.

    Raises:
        InvalidParams: the folder of the limits cannot be used.
    """

    def __init__(
        self,
        engine: "Engine",
        limits: CacheLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._limits = CacheLimits() if limits is None else limits
        self._clock = clock
        self._counters = CacheCounters()
        self._cuts = engine.choice.kind not in WHOLE_KINDS
        self._store = KvStore(self._limits, self._counters, clock, cuts=self._cuts)
        self._disk = None if self._limits.folder is None else _disk_tier(self._limits)
        self._rows: dict[SeqId, _Row] = {}
        self._donors: deque[_Donor] = deque()

    # -- rows begin

    def covered(self, params: "SequenceParams", use: CacheUse) -> int:
        """Tokens a request would take over now.

        Raises:
            EvalFailed: the backend threw.
        """
        if not self._store.entries:
            return 0
        tokens = self._store.covered(self._scope(use), params.prompt_ids[:-1])
        return tokens if tokens >= self._limits.min_tokens else 0

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
        use: CacheUse | None = None,
    ) -> SeqId:
        """`Engine.open`, with as much KV as is known; `Engine.cached_tokens` says how much.

        Args:
            params: the request.
            text: its decoder and stop strings.
            hooks: what a feature decides for the row.
            use: how the request uses the cache; None: as one that named nothing.

        Raises:
            InvalidParams, ContextOverflow: as `Engine.open`.
            EvalFailed: the backend threw; nothing is remembered any more.
        """
        use = CacheUse() if use is None else use
        scope = self._scope(use)
        self.settle()
        self._bring(scope, params.prompt_ids[:-1])
        seq = self._adopted(params, scope, text, hooks)
        if seq is None:
            seq = self._engine.open(params, text=text, hooks=hooks)
        self._rows[seq] = _Row(scope, _boundary(params, use))
        cached = self._engine.cached_tokens(seq)
        counters = self._counters
        counters.lookups += 1
        counters.lookup_tokens += len(params.prompt_ids)
        counters.hits += cached > 0
        counters.hit_tokens += cached
        return seq

    def resume(self, seq: SeqId, params: "SequenceParams", use: CacheUse) -> None:
        """A row that was suspended is open again: it is remembered like those opened here."""
        self._rows[seq] = _Row(self._scope(use), _boundary(params, use))

    def drop(self, seq: SeqId) -> None:
        """A row was closed elsewhere: nothing of it is remembered."""
        self._rows.pop(seq, None)

    def boundary(self, seq: SeqId) -> int | None:
        """Where a piece of the row's prompt has to end; None: anywhere."""
        row = self._rows.get(seq)
        return None if row is None or self._cuts else row.boundary

    def at_piece(self, seq: SeqId, done_tokens: int) -> None:
        """A piece of a prompt was read: KV that cannot be cut later is kept at the boundary."""
        row = self._rows.get(seq)
        if row is None or self._cuts or done_tokens != row.boundary:
            return
        try:
            row.kept = self._engine.transfer.export_prefix(seq)
        except COPY_ERRORS:
            self._counters.faults += 1

    # -- rows end

    def close(self, seq: SeqId, *, keeps: bool) -> None:
        """End a row and free it, now or once `advance` has copied it.

        Args:
            seq: a row that was opened here or not; what it has in flight is taken back.
            keeps: whether it ended well, and its KV may be remembered.
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
        self._counters.donations += bool(ids)
        if ids and self._cuts:
            self._donors.append(_Donor(seq, row.scope, ids))
        else:
            self._engine.close(seq)

    @property
    def is_copying(self) -> bool:
        """Whether rows that have ended are still open."""
        return bool(self._donors)

    def advance(self, seconds: float = COPY_SECONDS) -> None:
        """Copy some runs of rows that have ended, at least one."""
        end_s = self._clock() + seconds
        while self._donors:
            self._copy_run()
            if self._clock() >= end_s:
                return

    def settle(self) -> None:
        """Copy all that is left of rows that have ended."""
        while self._donors:
            self._copy_run()

    # -- all of it

    def reset(self) -> None:
        """Drop everything that is remembered, files too."""
        self.forget()
        if self._disk is not None:
            self._disk.clear()

    def shut_down(self) -> None:
        """Write what waits to be written, and end; rows may still be closed."""
        self.settle()
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def forget(self) -> None:
        """Drop everything that is in memory, and the memory it takes."""
        while self._donors:
            self._engine.close(self._donors.popleft().seq)
        for row in self._rows.values():
            row.kept = None
        self._store.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the KV that is held."""
        return self._store.nbytes

    def stats(self) -> CacheStats:
        """A snapshot for status pages."""
        self._store.expire()
        disk = self._disk
        return CacheStats(
            limits=self._limits,
            counters=self._counters.snapshot(),
            entries=self._store.entries,
            tokens=self._store.tokens,
            nbytes=self._store.nbytes,
            pending=len(self._donors),
            disk_entries=0 if disk is None else disk.entries,
            disk_bytes=0 if disk is None else disk.nbytes,
            disk_faults=0 if disk is None else disk.faults,
        )

    # -- internals

    def _scope(self, use: CacheUse) -> CacheScope:
        return CacheScope.of(self._engine.transfer.fingerprint, use)

    def _bring(self, scope: CacheScope, ids: tuple[int, ...]) -> None:
        """Fetch from the folder what goes on from what is in memory."""
        if self._disk is None:
            return
        reach = self._store.covered(scope, ids)
        try:
            for key, end in self._disk.find(scope, ids, reach, cuts=self._cuts):
                kv = self._disk.read(key)
                if kv is None or not self._put(scope, ids[:end], kv, (key.start, reach)):
                    return
                self._counters.disk_tokens += end - reach
                reach = end
        except COPY_ERRORS:
            self._counters.faults += 1

    def _put(
        self, scope: CacheScope, ids: tuple[int, ...], kv: RowSnapshot, known: tuple[int, int]
    ) -> bool:
        """Hold the part of a run from the folder that is of ``ids`` and not known yet."""
        if not self._cuts:
            return self._store.put_whole(scope, ids, part(kv))
        start, reach = known
        return self._store.put_run(scope, ids, part(kv, reach - start, len(ids) - start))

    def _adopted(
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
        prefix = CachedPrefix(scope.model, params.prompt_ids[: kv.tokens], kv)
        try:
            return self._engine.transfer.open_with_prefix(params, prefix, text=text, hooks=hooks)
        except SnapshotError:
            self._counters.faults += 1
            return None
        except RowError:
            self._counters.faults += 1
            self.forget()
            raise

    def _keep_whole(self, seq: SeqId, row: _Row) -> None:
        for prefix in (row.kept, self._engine.transfer.export_prefix(seq)):
            if prefix is not None and len(prefix.ids) >= self._limits.min_tokens:
                self._counters.donated_tokens += len(prefix.ids)
                if self._store.put_whole(row.scope, prefix.ids, prefix.kv) and self._disk:
                    self._disk.keep(row.scope, prefix.ids, prefix.kv)

    def _copy_run(self) -> None:
        """Copy the next run of the first donor; free it when there is nothing left."""
        donor = self._donors[0]
        try:
            has_more = self._copied_run(donor)
        except COPY_ERRORS:
            self._counters.faults += 1
            has_more = False
        except BaseException:
            self._end(donor)
            raise
        if not has_more:
            self._end(donor)

    def _copied_run(self, donor: _Donor) -> bool:
        """Whether there is more to copy."""
        start = self._store.covered(donor.scope, donor.ids)
        if start == len(donor.ids):
            return False
        stop = min(len(donor.ids), (start // RUN_TOKENS + 1) * RUN_TOKENS)
        kv = self._engine.transfer.export_run(donor.seq, start, stop)
        if not self._store.put_run(donor.scope, donor.ids[:stop], kv):
            return False
        self._counters.donated_tokens += kv.tokens
        if self._disk is not None:
            self._disk.keep(donor.scope, donor.ids[:stop], kv)
        return stop < len(donor.ids)

    def _end(self, donor: _Donor) -> None:
        self._donors.remove(donor)
        self._engine.close(donor.seq)


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
