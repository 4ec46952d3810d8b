"""The engine's side of drafted decoding: what a verify round and its warm-up do to a row."""

from collections.abc import Sequence as Ids

import mlx.core as mx

from engine import guard
from engine.errors import EvalFailed, RowError
from engine.finish import verify_room
from engine.forwards import Forwards, readable
from engine.kv.storage import Storage
from engine.ledger import Ledger
from engine.lookup.eligibility import RequestFacts
from engine.outcome import SeqId, StepOutcome
from engine.sampling.plan import DrawReading
from engine.sequence import Phase


class Drafting:
    """Forwards of several tokens of one row, and cutting them off again."""

    def __init__(self, ledger: Ledger, storage: Storage, forwards: Forwards) -> None:
        self._ledger = ledger
        self._storage = storage
        self._forwards = forwards

    def room(self, seq: SeqId, max_draft: int) -> int:
        """Most tokens a draft for the row may have now: its budget, context and way back."""
        row = self._ledger.row(seq)
        if row.lost is not None:
            return 0
        room = [max_draft]
        if row.rules.max_tokens is not None:
            room.append(row.rules.max_tokens - row.written - 1)
        bound = verify_room(row.written, row.prompt_tokens, row.rules)
        if bound is not None:
            room.append(bound)
        limit = self._storage.draft_limit(row.slot)
        if limit is not None:
            room.append(limit)
        return max(0, min(room))

    def facts(self, seq: SeqId, max_draft: int) -> RequestFacts:
        """What decides whether prompt lookup may serve the row."""
        row = self._ledger.row(seq)
        sampling = row.params.sampling
        limit = self._storage.draft_limit(row.slot)
        return RequestFacts(
            is_structured=row.hooks is not None,
            wants_logprobs=sampling.logprobs is not None,
            has_extended_chain=sampling.is_extended,
            has_feedback=sampling.has_feedback,
            is_trimmable=limit is None or limit >= max_draft,
        )

    def forward_width(self, seq: SeqId, width: int, *, wait: bool) -> None:
        """Forward a row's next token ``width`` times over, for its cost; the caller cuts it off.

        Args:
            seq: a row whose prompt is all there but its last token.
            width: tokens of the forward.
            wait: whether to compute it now, or let the next one follow it in the pipeline.

        Raises:
            EvalFailed: the backend threw.
        """
        row = self._ledger.row(seq)
        try:
            logits = self._forwards.of_row(row, [row.ids[-1]] * width)
            if wait:
                guard.read_ints(mx.argmax(logits, axis=-1))
            else:
                guard.dispatch([mx.argmax(logits, axis=-1)])
        except guard.BACKEND_ERRORS as error:
            raise EvalFailed(str(error)) from error

    def forward_draft(self, seq: SeqId, draft: Ids[int]) -> DrawReading:
        """Append [current, *draft] to a row and draw after each (for `verify_round`)."""
        row = self._ledger.row(seq)
        assert row.phase is Phase.DECODE
        assert not row.in_flight, "a verify round never runs with a step in flight"
        fed = [row.ids[-1], *draft]
        try:
            logits = self._forwards.of_row(row, fed)
            if logits.ndim != 2 or logits.shape[0] != len(fed):
                raise EvalFailed(f"the model gave {logits.shape} for {len(fed)} tokens")
            drawn = self._forwards.draw_positions(row, [*row.ids, *draft], logits)
            return self._ledger.read(drawn, readable(drawn, logits))
        except guard.BACKEND_ERRORS as error:
            raise EvalFailed(str(error)) from error

    def commit_position(self, seq: SeqId, reading: DrawReading, position: int) -> StepOutcome:
        """Finish the token drawn at a position of a draft (for `verify_round`)."""
        return self._ledger.commit(self._ledger.row(seq), reading, position)

    def rewind(self, seq: SeqId, tokens: int) -> None:
        """Cut a row's KV back (for `verify_round`)."""
        self._storage.rewind(self._ledger.row(seq).slot, tokens)

    def held_tokens(self, seq: SeqId) -> int:
        """Tokens a row's KV holds, committed or not."""
        return self._storage.length(self._ledger.row(seq).slot)

    def fail_row(self, seq: SeqId, error: RowError) -> StepOutcome:
        """End a row with an error (for `verify_round`)."""
        (outcome,) = self._ledger.end([self._ledger.row(seq)], error)
        return outcome
