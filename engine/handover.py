"""Takes rows out of an engine and puts them into one: snapshots, and prefixes of a prompt cache.

A row with steps in flight is taken as it was committed: what they appended is left out of the
copy, the row itself keeps it. Copies are computed before they are handed out, so that they hold no
reference to the pool (which would make its next step copy it) and a fault shows here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from engine import guard
from engine.errors import ContextOverflow, EvalFailed, RowError, SnapshotError, SnapshotMismatch
from engine.kv.storage import RowSnapshot, Storage
from engine.ledger import RowTable
from engine.lookup.governor import Governor
from engine.models.fingerprint import ModelFingerprint, model_fingerprint
from engine.outcome import SeqId
from engine.params import SequenceParams
from engine.rows import Phase, Row, RowHooks, SuspendedRow
from engine.snapshot import CachedPrefix, SequenceSnapshot

if TYPE_CHECKING:
    from engine.models.load import LoadedModel
    from engine.text.row_text import RowText


class Rows(Protocol):
    """What a restored row needs of the engine."""

    def open(
        self,
        params: SequenceParams,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """Give a request a row."""

    def close(self, seq: SeqId) -> None:
        """Free a row."""


class Handover:
    """Copies rows out of a storage and back.

    Args:
        rows: the engine.
        table: its rows.
        storage: where their KV lives.
        loaded: the model.
        storage_kind: `engine.kv.choose.StorageChoice.kind`.
    """

    def __init__(
        self, rows: Rows, table: RowTable, storage: Storage, loaded: LoadedModel, storage_kind: str
    ) -> None:
        self._rows = rows
        self._table = table
        self._storage = storage
        self._loaded = loaded
        self._storage_kind = storage_kind
        self._fingerprint: ModelFingerprint | None = None

    @property
    def model(self) -> ModelFingerprint:
        """The model's fingerprint; made at the first use.

        Raises:
            EvalFailed: the backend threw.
        """
        if self._fingerprint is None:
            facts = self._loaded.facts
            self._fingerprint = model_fingerprint(
                self._loaded.model,
                family=facts.family,
                vocab_size=facts.vocab_size,
                eos_ids=self._loaded.eos_ids,
                storage=self._storage_kind,
            )
        return self._fingerprint

    def snapshot(self, seq: SeqId, governor: Governor | None) -> SequenceSnapshot:
        """See `engine.engine.Engine.snapshot`."""
        row = self._sound_row(seq)
        if row.phase is Phase.FINISHED:
            raise SnapshotError("the row has ended: only its KV is of use, and detach takes that")
        return SequenceSnapshot(
            model=self.model,
            # The bound it really had: an engine with a larger context must not go on past it.
            params=replace(row.params, context_tokens=row.rules.context_tokens),
            written=tuple(row.generated),
            kv=self._copied(row, self._committed(row)),
            sampler=row.sampler.snapshot(),
            governor=governor,
            had_hooks=row.hooks is not None,
        )

    def detach(self, seq: SeqId, tokens: int | None) -> CachedPrefix:
        """See `engine.engine.Engine.detach`."""
        row = self._sound_row(seq)
        committed = self._committed(row)
        wanted = committed if tokens is None else tokens
        if not 0 <= wanted <= committed:
            raise SnapshotError(f"the row's KV holds {committed} tokens, not {wanted}")
        return CachedPrefix(self.model, tuple(row.ids[:wanted]), self._copied(row, wanted))

    def run(self, seq: SeqId, start: int, stop: int) -> RowSnapshot:
        """See `engine.engine.Engine.detach_run`."""
        row = self._sound_row(seq)
        committed = self._committed(row)
        if not 0 <= start < stop <= committed:
            raise SnapshotError(f"the row's KV holds {committed} tokens, not {start} to {stop}")
        return self._copied(row, stop, start)

    def retire(self, seq: SeqId) -> tuple[int, ...]:
        """See `engine.engine.Engine.retire`."""
        row = self._sound_row(seq)
        ahead = _ahead(row)
        row.in_flight.clear()
        if row.phase is Phase.DECODE:
            row.phase = Phase.FINISHED
        try:
            self._storage.rewind(row.slot, ahead)
        except RowError:
            row.failed = True
            raise
        return tuple(row.ids[: self._storage.length(row.slot)])

    def restore(
        self, snapshot: SequenceSnapshot, text: RowText | None, hooks: RowHooks | None
    ) -> SeqId:
        """See `engine.engine.Engine.restore`."""
        self._refuse_foreign(snapshot.model)
        if snapshot.had_hooks and hooks is None:
            raise SnapshotError("the row was drawn under hooks: give them, or its text changes")
        seq = self._rows.open(snapshot.params, text=text, hooks=hooks)
        row = self._table.row(seq)
        try:
            self._resume(row, snapshot)
            self._fill(row, snapshot.kv)
        except BaseException:
            self._rows.close(seq)
            raise
        return seq

    def adopt(
        self,
        params: SequenceParams,
        prefix: CachedPrefix,
        text: RowText | None,
        hooks: RowHooks | None,
    ) -> SeqId:
        """See `engine.engine.Engine.adopt`."""
        self._refuse_foreign(prefix.model)
        shared = prefix.shared_tokens(params.prompt_ids)
        if not shared:
            raise SnapshotError(_unusable(prefix))
        seq = self._rows.open(params, text=text, hooks=hooks)
        try:
            self._fill(self._table.row(seq), prefix.kv.first(shared))
        except BaseException:
            self._rows.close(seq)
            raise
        return seq

    def suspend(self, seq: SeqId) -> SuspendedRow:
        """See `engine.engine.Engine.suspend`."""
        row = self._sound_row(seq)
        if row.phase is Phase.FINISHED:
            raise SnapshotError("the row has ended: there is nothing to go on with")
        assert not row.in_flight, "a row is suspended between its steps"
        suspended = SuspendedRow(
            replace(row.params, context_tokens=row.rules.context_tokens),
            tuple(row.ids),
            row.sampler.snapshot(),
            row.text,
            row.hooks,
        )
        self._rows.close(seq)
        return suspended

    def resume(self, suspended: SuspendedRow) -> SeqId:
        """See `engine.engine.Engine.resume`."""
        seq = self._rows.open(suspended.params, text=suspended.text, hooks=suspended.hooks)
        row = self._table.row(seq)
        row.ids[:] = suspended.ids
        row.sampler.restore(suspended.sampler)
        return seq

    def _sound_row(self, seq: SeqId) -> Row:
        row = self._table.row(seq)
        if row.lost is not None:
            raise row.lost
        if row.failed:
            raise SnapshotError("the row has failed: its KV cannot be trusted")
        return row

    def _committed(self, row: Row) -> int:
        """Tokens of the row's KV that no step in flight appended."""
        return self._storage.length(row.slot) - _ahead(row)

    def _copied(self, row: Row, tokens: int, start: int = 0) -> RowSnapshot:
        kv = self._storage.save(row.slot, tokens, _ahead(row), start)
        if kv.tokens != tokens - start:
            raise SnapshotError(
                f"this family's KV of {kv.tokens} tokens cannot be cut to {tokens}: a ring or "
                "recurrent state does not hold what it was earlier"
            )
        guard.evaluate([array for layer in kv.layers for array in layer])
        return kv

    def _refuse_foreign(self, model: ModelFingerprint) -> None:
        differences = self.model.differences(model)
        if differences:
            raise SnapshotMismatch(differences)

    def _resume(self, row: Row, snapshot: SequenceSnapshot) -> None:
        """Bring everything but the KV to where the snapshot's row was."""
        vocab = self._loaded.facts.vocab_size
        if not all(0 <= token < vocab for token in snapshot.written):
            raise SnapshotError(f"a token of its answer is outside this model's {vocab}")
        bound = row.rules.context_tokens
        if bound is not None and len(snapshot.ids) + 1 >= bound:
            raise ContextOverflow(len(snapshot.ids), bound)
        row.ids.extend(snapshot.written)
        row.sampler.restore(snapshot.sampler)
        if snapshot.written:
            row.phase = Phase.DECODE
        if row.text is None:
            return
        for token in snapshot.written:
            if row.text.push(token):
                raise SnapshotError("the stop strings given would have ended the row before")
        row.text.take()

    def _fill(self, row: Row, kv: RowSnapshot) -> None:
        """Put KV into an empty row; after a fault the row is failed and not yet closed."""
        try:
            self._storage.load(row.slot, kv)
            guard.dispatch(self._storage.arrays())
        except EvalFailed as error:
            self._table.end([row], error)
            raise
        except guard.BACKEND_ERRORS as error:
            row.failed = True
            raise SnapshotError(f"its KV does not fit a row here: {error}") from error
        except BaseException:
            row.failed = True
            raise


def _unusable(prefix: CachedPrefix) -> str:
    if prefix.kv.is_whole:
        return (
            f"this family's KV of {prefix.kv.tokens} tokens can only be used whole, and the prompt "
            "does not go on from all of them"
        )
    return "the prompt begins with other tokens than this KV"


def _ahead(row: Row) -> int:
    """Tokens that steps in flight appended."""
    return sum(ticket.appended for ticket in row.in_flight)
