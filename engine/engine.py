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
from engine.errors import EvalFailed, InternalFault, InvalidParams, RowError, SnapshotError
from engine.finish import context_is_full, fail
from engine.forwards import Forwards
from engine.kv.choose import choose_storage
from engine.kv.transfer import KvTransfer
from engine.lookup.verify import Drafting
from engine.outcome import PrefillOutcome, SeqId, StepOutcome, VerifyOutcome
from engine.params import LookupPolicy, SequenceParams
from engine.prefill import PrefillChunk
from engine.rows import Phase, PreemptedRow, Row, RowHooks, RowTable
from engine.sampling.plan import ChainPrograms
from engine.steps import Steps, Ticket

if TYPE_CHECKING:
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
        self.tokenizer = loaded.tokenizer
        self._table = RowTable(self._storage, loaded, context_tokens=self.context_tokens)
        self.holds_steps = mx.default_device() == mx.Device(mx.cpu)
        self._steps = Steps(
            self._forwards,
            self._table,
            self._storage,
            clear_every=clear_every,
            holds=self.holds_steps,
        )
        self.health: guard.Health = self._steps.health
        """Whether the backend still works."""
        self.drafting = Drafting(
            self._table, self._steps, self._storage, self._forwards, self.context_tokens
        )
        """Drafts of single rows, their forwards and what they cost."""
        self.unmeasured_policy = unmeasured_policy
        self.transfer = KvTransfer(
            self._table, self._steps, self._storage, loaded, self.choice.kind
        )
        """KV of rows and prefixes out of this engine and into it."""

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
        return self._table.open(params, text, hooks).seq

    def close(self, seq: SeqId) -> None:
        """Free a row and what it has in flight; closing twice is harmless."""
        self._table.close(seq)
        self._steps.forget()

    def preempt(self, seq: SeqId) -> PreemptedRow:
        """Close a row that has nothing in flight, keeping what `resume` needs; its KV is dropped.

        Raises:
            SnapshotError: the row has ended or failed.
        """
        row = self._table.sound_row(seq)
        if row.phase is Phase.FINISHED:
            raise SnapshotError("the row has ended: there is nothing to resume")
        assert not row.in_flight, "a row is preempted between its steps"
        preempted = PreemptedRow(
            row.resumable_params, tuple(row.ids), row.sampler.snapshot(), row.text, row.hooks
        )
        self.close(seq)
        return preempted

    def resume(self, preempted: PreemptedRow) -> SeqId:
        """Open a row that continues where it was preempted, once its ids are prefilled again.

        `prefill` takes chunks of prompt and answer; the last one draws the answer's next token.
        """
        row = self._table.open(preempted.params, preempted.text, preempted.hooks)
        row.ids[:] = preempted.ids
        row.sampler.restore(preempted.sampler)
        return row.seq

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
            (first,) = self._steps.end([row], EvalFailed(str(error)))
        except RowError as error:
            (first,) = self._steps.end([row], error)
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
        # Behind a failed step the row has no token to continue from, and would fail its neighbours.
        if any(ticket.error is not None or row in ticket.faults for ticket in row.in_flight):
            return False
        ahead = row.written + len(row.in_flight)
        if row.rules.max_tokens is not None and ahead >= row.rules.max_tokens:
            return False
        return not context_is_full(ahead, row.prompt_tokens, row.rules)

    def check_row(self, seq: SeqId) -> None:
        """Raise what keeps a row from ever ending.

        Raises:
            RowError: its KV was lost, with a step that need not have been its own.
            InternalFault: it decodes, may take no step and has none in flight.
        """
        row = self._table.row(seq)
        if row.lost is not None:
            raise row.lost
        if row.phase is Phase.DECODE and not row.in_flight and not self.wants_step(seq):
            raise InternalFault(RuntimeError(f"{row} may take no step and has not ended"))

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

        Call it once all that was collected is sent; the next ``submit`` does it too.
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

    # -- what a row has come to

    def cached_tokens(self, seq: SeqId) -> int:
        """Tokens of a row's prompt whose KV is there: where its prefill begins or continues."""
        row = self._table.row(seq)
        return 0 if row.lost else min(row.prompt_tokens, self._storage.length(row.slot))

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
        reading = self._steps.read(drawn, drawn.readable())
        row.phase = Phase.DECODE
        return self._steps.commit(row, reading, 0)
