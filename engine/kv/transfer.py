"""KV transfer: rows and prefixes out of an engine and into one.

Two values hold what a row is, apart from the engine it ran in. A `CachedPrefix` is the KV of some
tokens, for any row that begins with them (a prompt cache, prefill in another process). A
`SequenceSnapshot` is a whole row, enough for another process to continue it.

A row with steps in flight is taken as it was committed: what they appended is left out of the
copy, the row itself keeps it. Copies are computed before they are handed out, so that they hold no
reference to the pool (which would make its next step copy it) and a fault shows here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from engine import guard
from engine.errors import ContextOverflow, EvalFailed, RowError, SnapshotError, SnapshotMismatch
from engine.kv.storage import RowSnapshot, Storage
from engine.lookup.drafter import PromptLookup
from engine.lookup.governor import Governor
from engine.lookup.reference import ReferenceText
from engine.models.contents import file_states
from engine.models.fingerprint import ModelFingerprint, loaded_fingerprint
from engine.outcome import SeqId
from engine.params import SequenceParams
from engine.rows import Phase, Row, RowHooks, RowTable
from engine.sampling.row_sampler import SamplerSnapshot
from engine.steps import Steps

if TYPE_CHECKING:
    from engine.models.load import LoadedModel
    from engine.text.row_text import RowText


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The KV of ``ids``, whatever row it came from."""

    model: ModelFingerprint
    ids: tuple[int, ...]
    kv: RowSnapshot

    def __post_init__(self) -> None:
        if len(self.ids) != self.kv.tokens:
            raise SnapshotError(f"KV of {self.kv.tokens} tokens for {len(self.ids)} ids")

    @property
    def nbytes(self) -> int:
        """Bytes its arrays take."""
        return self.kv.nbytes

    def shared_tokens(self, prompt_ids: Sequence[int]) -> int:
        """How many tokens a prompt can begin with; its last one is always forwarded anew.

        0 where this KV can only be used as a whole and the prompt does not hold all of it.
        """
        if len(self.ids) < len(prompt_ids) and tuple(prompt_ids[: len(self.ids)]) == self.ids:
            return len(self.ids)
        pairs = zip(self.ids, prompt_ids[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return 0 if self.kv.is_whole and shared < len(self.ids) else shared

    def first(self, tokens: int) -> CachedPrefix:
        """The first ``tokens`` tokens of it; a view, not a copy.

        Raises:
            SnapshotError: there are fewer, or this KV exists only as a whole.
        """
        return replace(self, ids=self.ids[:tokens], kv=self.kv.first(tokens))


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """A row as it was between two tokens.

    The length law of `engine.rows` holds in it: KV is of all ids but the newest; during
    prefill, of the part of the prompt that was prefilled.
    """

    model: ModelFingerprint
    params: SequenceParams
    """The request, with the seed it drew and the context bound it had."""
    written: tuple[int, ...]
    """The answer so far."""
    kv: RowSnapshot
    sampler: SamplerSnapshot
    governor: Governor | None = None
    """The draft budget's keeper of a row that drafts; the drafter's context is ``ids``."""
    had_hooks: bool = False
    """Whether a mask or finish hook took part, without which the text would be another."""

    def __post_init__(self) -> None:
        held = self.kv.tokens
        whole = len(self.ids) - 1
        if held != whole and (self.written or held > whole):
            raise SnapshotError(f"KV of {held} tokens for a row of {len(self.ids)}")

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return self.params.prompt_ids + self.written

    @property
    def prefix(self) -> CachedPrefix:
        """Its KV for other rows."""
        return CachedPrefix(self.model, self.ids[: self.kv.tokens], self.kv)

    @property
    def nbytes(self) -> int:
        """Bytes its arrays take."""
        return self.kv.nbytes

    def cut(self, tokens: int) -> SequenceSnapshot:
        """The row as it was when its KV held ``tokens`` tokens; a view, not a copy.

        Raises:
            SnapshotError: it never was, its KV exists only as a whole, or its sampler has learnt
                from the tokens that would go (mirostat).
        """
        if tokens == self.kv.tokens:
            return self
        if self.params.sampling.has_feedback:
            raise SnapshotError("mirostat's state is of the newest token: no earlier row is known")
        kept = self.kv.first(tokens)
        written = self.ids[len(self.params.prompt_ids) : tokens + 1]
        return replace(self, kv=kept, written=written)

    def drafter(self, references: Sequence[ReferenceText] = ()) -> PromptLookup | None:
        """A drafter that continues the row's; None where it had none."""
        speculation = self.params.speculation
        if speculation is None or self.governor is None or not self.written:
            return None
        drafter = PromptLookup(speculation, self.governor, references=references)
        drafter.start(self.params.prompt_ids, self.written[0])
        drafter.observe(self.written[1:])
        return drafter


class KvTransfer:
    """Copies rows out of a storage and back.

    Args:
        table: the rows.
        steps: ends rows whose transfer fails.
        storage: where their KV lives.
        loaded: the model.
        storage_kind: `engine.kv.choose.StorageChoice.kind`.
    """

    def __init__(
        self,
        table: RowTable,
        steps: Steps,
        storage: Storage,
        loaded: LoadedModel,
        storage_kind: str,
    ) -> None:
        self._table = table
        self._steps = steps
        self._storage = storage
        self._loaded = loaded
        self._storage_kind = storage_kind
        self._files = file_states(loaded.facts.path)
        self._fingerprint: ModelFingerprint | None = None

    @property
    def fingerprint(self) -> ModelFingerprint:
        """What the KV is bound to beyond this engine; the first call may read all of its files.

        Raises:
            EvalFailed: the backend threw.
        """
        if self._fingerprint is None:
            self._fingerprint = loaded_fingerprint(self._loaded, self._files, self._storage_kind)
        return self._fingerprint

    # -- prefixes

    def export_prefix(self, seq: SeqId, tokens: int | None = None) -> CachedPrefix:
        """A copy of the KV of a row's first ``tokens`` tokens, None: of all committed ones.

        The row may have finished, and may not have failed. Waits for the device.

        Raises:
            SnapshotError: the row has failed, is shorter, or its KV exists only as a whole.
            UnsupportedModel: this family's KV cannot be taken out.
            EvalFailed: the backend threw.
        """
        row = self._table.sound_row(seq)
        committed = self._committed(row)
        wanted = committed if tokens is None else tokens
        if not 0 <= wanted <= committed:
            raise SnapshotError(f"the row's KV holds {committed} tokens, not {wanted}")
        return CachedPrefix(self.fingerprint, tuple(row.ids[:wanted]), self._copied(row, wanted))

    def export_committed(self, seq: SeqId) -> tuple[tuple[int, ...], RowSnapshot]:
        """A row's committed tokens and their KV, as `export_prefix`, for rows of this engine."""
        row = self._table.sound_row(seq)
        committed = self._committed(row)
        return tuple(row.ids[:committed]), self._copied(row, committed)

    def export_run(self, seq: SeqId, start: int, stop: int) -> RowSnapshot:
        """A copy of the KV of a row's tokens [start, stop), which no row can begin with alone.

        Raises:
            SnapshotError, UnsupportedModel, EvalFailed: as `export_prefix`.
        """
        row = self._table.sound_row(seq)
        committed = self._committed(row)
        if not 0 <= start < stop <= committed:
            raise SnapshotError(f"the row's KV holds {committed} tokens, not {start} to {stop}")
        return self._copied(row, stop, start)

    def finish_row(self, seq: SeqId) -> tuple[int, ...]:
        """End a row where it stands, steps in flight unread; the ids its KV is of, for export.

        Raises:
            SnapshotError: the row has failed.
            RewindFailed: what was in flight cannot be taken back; the row has failed.
        """
        row = self._table.sound_row(seq)
        ahead = row.appended_ahead
        row.in_flight.clear()
        if row.phase is Phase.DECODE:
            row.finish()
        try:
            self._storage.rewind(row.slot, ahead)
        except RowError:
            row.failed = True
            raise
        return tuple(row.ids[: self._storage.length(row.slot)])

    def open_with_prefix(
        self,
        params: SequenceParams,
        prefix: CachedPrefix,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """`Engine.open`, with the KV of as many tokens as prompt and prefix share, but the last.

        `Engine.cached_tokens` says how many; prefill begins there. What fails leaves no row.

        Raises:
            SnapshotMismatch: the prefix is of another model or setup.
            SnapshotError: they share nothing that can be used (`CachedPrefix.shared_tokens`).
            InvalidParams, ContextOverflow: as `Engine.open`.
            EvalFailed: the backend threw.
        """
        self._refuse_foreign(prefix.model)
        shared = prefix.shared_tokens(params.prompt_ids)
        if not shared:
            raise SnapshotError(_unusable(prefix))
        return self.open_with_kv(params, prefix.kv.first(shared), text=text, hooks=hooks)

    def open_with_kv(
        self,
        params: SequenceParams,
        kv: RowSnapshot,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """`open_with_prefix` with KV of this engine, of the prompt's first tokens but the last."""
        row = self._table.open(params, text, hooks)
        try:
            self._fill(row, kv)
        except BaseException:
            self._table.close(row.seq)
            raise
        return row.seq

    # -- whole rows

    def snapshot(self, seq: SeqId, *, governor: Governor | None = None) -> SequenceSnapshot:
        """What another engine of this model needs to continue a row, which continues here too.

        Waits for the device.

        Args:
            seq: a row that is prefilled or decodes.
            governor: the draft budget's keeper of the row's drafter, to be kept with it.

        Raises:
            SnapshotError: the row has ended or failed.
            UnsupportedModel: this family's KV cannot be taken out.
            EvalFailed: the backend threw.
        """
        row = self._table.sound_row(seq)
        if row.phase is Phase.FINISHED:
            raise SnapshotError("the row has ended: only its KV is of use, as a prefix")
        return SequenceSnapshot(
            model=self.fingerprint,
            params=row.resumable_params,
            written=tuple(row.generated),
            kv=self._copied(row, self._committed(row)),
            sampler=row.sampler.snapshot(),
            governor=governor,
            had_hooks=row.hooks is not None,
        )

    def restore(
        self,
        snapshot: SequenceSnapshot,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """Open a row that continues where a snapshot was taken; what fails leaves no row.

        Args:
            snapshot: of this very model, from any process.
            text: a fresh one with the row's stop strings; text shown before is not shown again.
            hooks: what decides for the row, if it had any.

        Raises:
            SnapshotMismatch: it is of another model or setup.
            SnapshotError: it cannot be put into a row here.
            ContextOverflow: this engine's context has no room for its next token.
            EvalFailed: the backend threw.
        """
        self._refuse_foreign(snapshot.model)
        if snapshot.had_hooks and hooks is None:
            raise SnapshotError("the row was drawn under hooks: give them, or its text changes")
        row = self._table.open(snapshot.params, text, hooks)
        try:
            self._continue(row, snapshot)
            self._fill(row, snapshot.kv)
        except BaseException:
            self._table.close(row.seq)
            raise
        return row.seq

    # -- internals

    def _committed(self, row: Row) -> int:
        """Tokens of the row's KV that no step in flight appended."""
        return self._storage.length(row.slot) - row.appended_ahead

    def _copied(self, row: Row, tokens: int, start: int = 0) -> RowSnapshot:
        kv = self._storage.save(row.slot, tokens, row.appended_ahead, start)
        if kv.tokens != tokens - start:
            raise SnapshotError(
                f"this family's KV of {kv.tokens} tokens cannot be cut to {tokens}: a ring or "
                "recurrent state does not hold what it was earlier"
            )
        guard.evaluate([array for layer in kv.layers for array in layer])
        return kv

    def _refuse_foreign(self, model: ModelFingerprint) -> None:
        differences = self.fingerprint.differences(model)
        if differences:
            raise SnapshotMismatch(differences)

    def _continue(self, row: Row, snapshot: SequenceSnapshot) -> None:
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
            self._steps.end([row], error)
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
            "does not continue all of them"
        )
    return "the prompt begins with other tokens than this KV"
