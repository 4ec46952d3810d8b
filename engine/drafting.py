"""The engine's side of drafted decoding: what a verify round and its warm-up do to rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine import guard
from engine.commit import fail
from engine.errors import EvalFailed, RowError, UnsupportedModel
from engine.finish import verify_room
from engine.forwards import Forwards, readable
from engine.kv.storage import Storage
from engine.ledger import RowTable
from engine.lookup.eligibility import RequestFacts
from engine.lookup.verify_round import verify_round
from engine.outcome import SeqId, StepOutcome, VerifyOutcome
from engine.rows import Phase
from engine.sampling.plan import DrawReading


@dataclass(frozen=True, slots=True)
class RowReading:
    """One row's share of what a round drew."""

    drawn: DrawReading
    """Of all rows."""
    first: int
    """Entry of the row's first position."""
    fault: RowError | None
    """Why none of them can be used."""


class Drafting:
    """Forwards of several tokens a row, and cutting them off again.

    Args:
        table: the rows.
        storage: where their KV lives.
        forwards: runs the model.
        context_tokens: most tokens a row may hold.
    """

    def __init__(
        self, table: RowTable, storage: Storage, forwards: Forwards, context_tokens: int
    ) -> None:
        self._table = table
        self._storage = storage
        self._forwards = forwards
        self._context_tokens = context_tokens

    @property
    def padded_rows(self) -> int:
        """Rows of a forward that several drafts share: the whole pool, whoever takes part."""
        return self._storage.rows

    def padding_fits(self, drafts: Mapping[SeqId, Sequence[int]]) -> bool:
        """Whether a forward that these drafts share needs no KV and no context for its padding.

        Every row of the pool is padded, also those that end soon or only ride along.
        """
        rows = {self._table.row(seq): len(draft) + 1 for seq, draft in drafts.items()}
        widths = {row.slot: width for row, width in rows.items() if row.lost is None}
        return not widths or self._storage.padding_fits(widths, self._context_tokens)

    def room(self, seq: SeqId, max_draft: int) -> int:
        """Most tokens a draft for the row may have now: its budget, context and way back."""
        row = self._table.row(seq)
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
        row = self._table.row(seq)
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
        row = self._table.row(seq)
        try:
            logits = self._forwards.of_row(row, [row.ids[-1]] * width)
            if wait:
                guard.read_ints(mx.argmax(logits, axis=-1))
            else:
                guard.dispatch([mx.argmax(logits, axis=-1)])
        except guard.BACKEND_ERRORS as error:
            raise EvalFailed(str(error)) from error

    def verify(self, drafts: Mapping[SeqId, Sequence[int]]) -> list[VerifyOutcome]:
        """`Engine.verify_together`, of drafts that were checked."""
        if len(drafts) > 1 and not self._storage.pads:
            raise UnsupportedModel("rows of this model are verified one by one")
        outcomes: dict[SeqId, VerifyOutcome] = {}
        for seq, draft in drafts.items():
            row = self._table.row(seq)
            if row.lost is not None:
                ended = fail(row, row.lost)
                outcomes[seq] = VerifyOutcome(seq, (ended,), len(draft), 0, row.lost)
        live = {seq: draft for seq, draft in drafts.items() if seq not in outcomes}
        if live:
            self._table.fit()
            shares = len(live) == 1 or self.padding_fits(live)
            for part in [live] if shares else [{seq: draft} for seq, draft in live.items()]:
                outcomes |= {outcome.seq: outcome for outcome in verify_round(self, part)}
        return [outcomes[seq] for seq in drafts]

    def forward_drafts(self, drafts: Mapping[SeqId, Sequence[int]]) -> dict[SeqId, RowReading]:
        """Append [current, *draft] to each row and draw after each token (for `verify_round`)."""
        rows = {self._table.row(seq): draft for seq, draft in drafts.items()}
        for row in rows:
            assert row.phase is Phase.DECODE
            assert not row.in_flight, "a verify round never runs with a step in flight"
        try:
            logits = self._forwards.of_drafts(rows)
            drawn, faults = self._forwards.draw_positions(rows, logits)
            reading = self._table.read(drawn, readable(drawn, logits))
        except guard.BACKEND_ERRORS as error:
            raise EvalFailed(str(error)) from error
        readings: dict[SeqId, RowReading] = {}
        first = 0
        for row, draft in rows.items():
            readings[row.seq] = RowReading(reading, first, faults.get(row))
            first += len(draft) + 1
        return readings

    def commit_position(self, seq: SeqId, reading: RowReading, position: int) -> StepOutcome:
        """Finish the token drawn at a position of a draft (for `verify_round`)."""
        row = self._table.row(seq)
        if reading.fault is not None:
            return fail(row, reading.fault)
        return self._table.commit(row, reading.drawn, reading.first + position)

    def rewind(self, seq: SeqId, tokens: int) -> None:
        """Cut a row's KV back (for `verify_round`)."""
        self._storage.rewind(self._table.row(seq).slot, tokens)

    def held_tokens(self, seq: SeqId) -> int:
        """Tokens a row's KV holds, committed or not."""
        return self._storage.length(self._table.row(seq).slot)

    def fail_rows(self, seqs: Iterable[SeqId], error: RowError) -> list[StepOutcome]:
        """End rows with one error (for `verify_round`)."""
        return self._table.end([self._table.row(seq) for seq in seqs], error)
