"""The one way from a prompt to tokens: model, KV storage and rows behind a few calls.

Every forward and every draw of the product happens behind this class. A single sequence is a
batch of one; ``step`` is exactly ``collect(submit(...))``.

Invariants (each pinned by a test):
    E1  ``submit`` reads nothing from the device: step n+1 is dispatched before token n is read.
    E2  What ``collect`` read is committed; no token is ever drawn twice.
    E3  The length law of `engine.rows` holds after every call; what is cut when a row ends
        is exactly its tickets in flight.
    E4  An error of one row ends that row; a failed shared forward ends the rows of that step
        once, and the engine is usable afterwards.
    E5  No forward follows the token that spends the budget (`wants_step`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from engine import guard
from engine.commit import fail
from engine.drafting import Drafting
from engine.errors import EvalFailed, InvalidParams, RowError
from engine.finish import context_is_full
from engine.forwards import Forwards, readable
from engine.handover import Handover
from engine.health import Health
from engine.kv.choose import choose_storage
from engine.kv.storage import RowSnapshot
from engine.ledger import RowTable
from engine.lookup.governor import Governor
from engine.opening import expected_tokens, new_row
from engine.outcome import PrefillOutcome, SeqId, StepOutcome, VerifyOutcome
from engine.params import LookupPolicy, SequenceParams
from engine.prefill import PrefillChunk
from engine.rows import Phase, Row, RowHooks, SuspendedRow
from engine.sampling.plan import ChainPrograms
from engine.snapshot import CachedPrefix, SequenceSnapshot
from engine.steps import Steps
from engine.ticket import Ticket

if TYPE_CHECKING:
    from engine.models.fingerprint import ModelFingerprint
    from engine.models.load import LoadedModel, ModelFacts
    from engine.text.row_text import RowText


class Engine:
    """A model and its rows. All calls come from the thread that made it.

    Args:
        loaded: what `engine.models.load` gave.
        context_tokens: most tokens a row may hold; None: the model's own context.
        clear_every: generated tokens between cache clears; 0 is never.
        compiled: compile the sampling chain: less host work on a GPU; on a CPU MLX would build
            each kernel with the C++ compiler.
        unmeasured_policy: what prompt lookup's ``auto`` is before widths were measured.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        context_tokens: int | None = None,
        clear_every: int = 256,
        compiled: bool = False,
        unmeasured_policy: LookupPolicy = LookupPolicy.GRADED,
    ) -> None:
        self.facts: ModelFacts = loaded.facts
        own = loaded.facts.context_tokens
        self.context_tokens = own if context_tokens is None else min(own, context_tokens)
        self.choice = choose_storage(
            loaded.model, family=loaded.facts.family, context_tokens=self.context_tokens
        )
        self._storage = self.choice.storage
        programs = ChainPrograms() if compiled else None
        self._forwards = Forwards(loaded.model, self._storage, programs)
        self._loaded = loaded
        self.tokenizer = loaded.tokenizer
        self._table = RowTable(self._storage, clear_every=clear_every)
        self.holds_steps = mx.default_device() == mx.Device(mx.cpu)
        self._steps = Steps(self._forwards, self._table, holds=self.holds_steps)
        self.drafting = Drafting(self._table, self._storage, self._forwards, self.context_tokens)
        self.unmeasured_policy = unmeasured_policy
        self._handover = Handover(self, self._table, self._storage, loaded, self.choice.kind)
        self._next_seq = 0

    @property
    def health(self) -> Health:
        """Whether the backend still works."""
        return self._table.health

    # -- life of a row

    def open(
        self,
        params: SequenceParams,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """Check a request against the model and give it a row; no forward happens.

        Raises:
            InvalidParams: a token id outside the model's vocabulary.
            ContextOverflow: the prompt leaves no room for an answer.
        """
        row = new_row(
            SeqId(self._next_seq),
            params,
            self._loaded,
            context_tokens=self.context_tokens,
            text=text,
            hooks=hooks,
        )
        row.slot = self._storage.open(expected_tokens(row))
        self._next_seq += 1
        self._table.rows[row.seq] = row
        return row.seq

    def close(self, seq: SeqId) -> None:
        """Free a row and what it has in flight; closing twice is harmless."""
        row = self._table.rows.pop(seq, None)
        if row is None:
            return
        # What was appended and never drawn from may hold anything, as a failed row's KV may.
        unread = row.phase is Phase.PREFILL or bool(row.in_flight)
        row.phase = Phase.FINISHED
        row.in_flight.clear()
        self._steps.forget()
        if row.lost is None:
            self._storage.close(row.slot, failed=row.failed or unread)

    # -- prefill

    def prefill(self, seq: SeqId, chunk: PrefillChunk) -> PrefillOutcome:
        """Forward one chunk of the prompt; the last one draws and finishes the first token.

        An error of the forward or the draw is in ``first.error``; the row is over then.
        """
        row = self._table.row(seq)
        if row.lost is not None:
            return PrefillOutcome(seq, chunk.start, row.prompt_tokens, fail(row, row.lost))
        assert row.phase is Phase.PREFILL
        assert chunk.start == self._storage.length(row.slot), "chunks come in order"
        try:
            first = self._prefilled(row, chunk)
        except guard.BACKEND_ERRORS as error:
            (first,) = self._table.end([row], EvalFailed(str(error)))
        except RowError as error:
            (first,) = self._table.end([row], error)
        return PrefillOutcome(seq, chunk.stop, row.prompt_tokens, first)

    def join(self, seq: SeqId) -> None:
        """Leave the last chunk of a row's prompt to the next step of the rows that decode."""
        row = self._table.row(seq)
        assert row.phase is Phase.PREFILL
        assert row.lost or self._storage.length(row.slot) == len(row.ids) - 1
        row.phase = Phase.DECODE

    # -- decode

    def wants_step(self, seq: SeqId) -> bool:
        """Whether one more step may be submitted for the row before its tickets are read."""
        row = self._table.row(seq)
        if row.phase is not Phase.DECODE or row.lost is not None:
            return False
        # Behind a failed step the row has no token to go on with, and would fail its neighbours.
        if any(ticket.error is not None or row in ticket.faults for ticket in row.in_flight):
            return False
        ahead = row.written + len(row.in_flight)
        if row.rules.max_tokens is not None and ahead >= row.rules.max_tokens:
            return False
        return not context_is_full(ahead, row.prompt_tokens, row.rules)

    def check_row(self, seq: SeqId) -> None:
        """Raise why a row's KV was lost, with a step that need not have been its own."""
        if (error := self._table.row(seq).lost) is not None:
            raise error

    def step(self, seqs: Iterable[SeqId]) -> list[StepOutcome]:
        """One token for every row."""
        return self.collect(self.submit(seqs))

    def submit(self, seqs: Iterable[SeqId]) -> Ticket:
        """Dispatch one step of rows that decode; reads nothing (E1).

        A step that cannot be dispatched gives a ticket whose rows fail when it is collected. A
        row's third one before its first is collected is refused (`Steps.submit`).
        """
        return self._steps.submit([self._table.row(seq) for seq in seqs])

    def collect(self, ticket: Ticket) -> list[StepOutcome]:
        """Read a ticket's tokens and finish each of its rows that still waits for it."""
        return self._steps.collect(ticket)

    def flush(self) -> None:
        """Start the newest step where ``submit`` only built it (on a CPU); else nothing.

        For when all that was collected is told; the next ``submit`` does it too.
        """
        self._steps.flush()

    # -- verify

    def verify(self, seq: SeqId, draft: Sequence[int]) -> VerifyOutcome:
        """`verify_together` of one row, which every model can do."""
        (outcome,) = self.verify_together({seq: draft})
        return outcome

    @property
    def verifies_together(self) -> bool:
        """Whether drafts of several rows can share a forward.

        It goes by what the model keeps, and turns to no when a forward shows that a token of
        several sees more than it would alone.
        """
        return self._storage.pads

    def verify_together(self, drafts: Mapping[SeqId, Sequence[int]]) -> list[VerifyOutcome]:
        """One forward over [current, *draft] of each row, as far as the drafts are right.

        Args:
            drafts: rows that decode, with nothing in flight, and what each may have next, within
                its `draft_room`. An empty draft gives what a plain step gives.

        Returns:
            An outcome a row, in order. A failed forward ends them all and counts once; any other
            error ends its own row.

        Raises:
            InvalidParams: a drafted id outside the vocabulary (`check_draft`); nothing happened.
            UnsupportedModel: several rows, and not `verifies_together`; nothing happened.
        """
        for draft in drafts.values():
            self.check_draft(draft)
        return self.drafting.verify(drafts)

    def check_draft(self, draft: Sequence[int]) -> None:
        """Raise InvalidParams for a token id outside the vocabulary."""
        vocab = self.facts.vocab_size
        for token in draft:
            if not 0 <= token < vocab:
                raise InvalidParams("draft", f"token id {token} is outside {vocab} tokens")

    def draft_room(self, seq: SeqId, max_draft: int) -> int:
        """Most tokens a draft for the row may have now: its budget, context and way back."""
        return self.drafting.room(seq, max_draft)

    # -- rows to and from elsewhere

    def snapshot(self, seq: SeqId, *, governor: Governor | None = None) -> SequenceSnapshot:
        """What another engine of this model needs to go on with a row; the row goes on too.

        A row with steps in flight is taken as it was committed. Waits for the device.

        Args:
            seq: a row that reads its prompt or decodes.
            governor: the draft budget's keeper of the row's drafter, to go along.

        Raises:
            SnapshotError: the row has ended or failed.
            UnsupportedModel: this family's KV cannot be taken out.
            EvalFailed: the backend threw.
        """
        return self._handover.snapshot(seq, governor)

    def restore(
        self,
        snapshot: SequenceSnapshot,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """Open a row that goes on where a snapshot was taken; what fails leaves no row.

        Args:
            snapshot: of this very model, from any process.
            text: a fresh one with the row's stop strings; what was released before stays unsaid.
            hooks: what decides for the row, if it had any.

        Raises:
            SnapshotMismatch: it is of another model or setup.
            SnapshotError: it cannot be put into a row here.
            ContextOverflow: this engine's context has no room for its next token.
            EvalFailed: the backend threw.
        """
        return self._handover.restore(snapshot, text, hooks)

    def detach(self, seq: SeqId, tokens: int | None = None) -> CachedPrefix:
        """A copy of the KV of a row's first ``tokens`` tokens, None: of all committed ones.

        The row may have finished, and may not have failed. Waits for the device.

        Raises:
            SnapshotError: the row has failed, is shorter, or its KV exists only as a whole.
            UnsupportedModel: this family's KV cannot be taken out.
            EvalFailed: the backend threw.
        """
        return self._handover.detach(seq, tokens)

    def detach_run(self, seq: SeqId, start: int, stop: int) -> RowSnapshot:
        """A copy of the KV of a row's tokens [start, stop), as `detach`: no row begins with it.

        Raises:
            SnapshotError, UnsupportedModel, EvalFailed: as `detach`.
        """
        return self._handover.run(seq, start, stop)

    def retire(self, seq: SeqId) -> tuple[int, ...]:
        """End a row where it stands, steps in flight unread; the ids its KV is of, to be detached.

        Raises:
            SnapshotError: the row has failed.
            RewindFailed: what was in flight cannot be taken back; the row has failed.
        """
        return self._handover.retire(seq)

    @property
    def fingerprint(self) -> ModelFingerprint:
        """What its KV is bound to; the first call reads a few values of each weight.

        Raises:
            EvalFailed: the backend threw.
        """
        return self._handover.model

    def adopt(
        self,
        params: SequenceParams,
        prefix: CachedPrefix,
        *,
        text: RowText | None = None,
        hooks: RowHooks | None = None,
    ) -> SeqId:
        """`open`, with the KV of as many tokens as prompt and prefix share, but for the last.

        `cached_tokens` says how many; `prefill` begins there. What fails leaves no row.

        Raises:
            SnapshotMismatch: the prefix is of another model or setup.
            SnapshotError: they share nothing that can be used (`CachedPrefix.shared_tokens`).
            InvalidParams, ContextOverflow: as `open`.
            EvalFailed: the backend threw.
        """
        return self._handover.adopt(params, prefix, text, hooks)

    def cached_tokens(self, seq: SeqId) -> int:
        """Tokens of a row's prompt whose KV is there: where its prefill begins or goes on."""
        row = self._table.row(seq)
        return 0 if row.lost else min(row.prompt_tokens, self._storage.length(row.slot))

    def suspend(self, seq: SeqId) -> SuspendedRow:
        """Close a row that has nothing in flight, keeping what `resume` needs; its KV is dropped.

        Raises:
            SnapshotError: the row has ended or failed.
        """
        return self._handover.suspend(seq)

    def resume(self, suspended: SuspendedRow) -> SeqId:
        """Open a row that goes on where it was suspended, once its ids are read again.

        `prefill` takes chunks of prompt and answer; the last one draws the answer's next token.
        """
        return self._handover.resume(suspended)

    # -- what a row has come to

    def ids(self, seq: SeqId) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return tuple(self._table.row(seq).ids)

    def answer(self, seq: SeqId) -> list[int]:
        """The answer so far (a copy)."""
        return self._table.row(seq).generated

    def last_token(self, seq: SeqId) -> int:
        """The newest committed token."""
        return self._table.row(seq).ids[-1]

    # -- internals

    def _prefilled(self, row: Row, chunk: PrefillChunk) -> StepOutcome | None:
        logits = self._forwards.of_row(row, row.ids[chunk.start : chunk.stop])
        if not chunk.is_last:
            guard.evaluate(self._storage.arrays())
            mx.clear_cache()
            return None
        drawn, faults = self._forwards.draw_positions({row: ()}, logits[-1:])
        if faults:
            raise faults[row]
        reading = self._table.read(drawn, readable(drawn, logits[-1:]))
        row.phase = Phase.DECODE
        return self._table.commit(row, reading, 0)
