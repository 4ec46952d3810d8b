"""Drafted decoding: forwards over newest tokens and drafts, accepted as far as they are right.

Rows share the forward, where their model lets them, and nothing else: each is decided, cut back
and ended by itself. An empty draft is a plain step.

A drafted token is accepted when it is the very token the row's own sampler draws at its place.
The proposal is a single token, so this is the optimal rejection rule for every sampler: the text
is what plain decoding writes, up to near-ties of a wider forward. A drafted token may be one that
the model cannot take, and its NaN reaches the tokens before it (a masked NaN times weight zero is
NaN): from the first token that cannot be drawn, the draft is given up and the row steps plainly.

State law: afterwards KV holds prompt + written - 1 tokens (prompt + written after an end token),
as after the same number of plain steps; a failed round leaves what was there before it. This
holds for every row of the round, whatever became of its neighbours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from engine import guard
from engine.errors import EvalFailed, RowError, UnsupportedModel
from engine.finish import NOT_FINITE, FinishCause, fail, verify_room
from engine.forwards import Forwards
from engine.kv.storage import Storage
from engine.lookup.eligibility import RowFacts
from engine.outcome import SeqId, StepOutcome, VerifyOutcome
from engine.rows import Phase, RowTable
from engine.sampling.plan import DrawReading
from engine.steps import Steps


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
        steps: reads draws and commits tokens.
        storage: where the rows' KV lives.
        forwards: runs the model.
        context_tokens: most tokens a row may hold.
    """

    def __init__(
        self,
        table: RowTable,
        steps: Steps,
        storage: Storage,
        forwards: Forwards,
        context_tokens: int,
    ) -> None:
        self._table = table
        self._steps = steps
        self._storage = storage
        self._forwards = forwards
        self._context_tokens = context_tokens

    @property
    def padded_rows(self) -> int:
        """Rows of a forward that several drafts share: the whole pool, whoever takes part."""
        return self._storage.rows

    def padding_fits(self, drafts: Mapping[SeqId, Sequence[int]]) -> bool:
        """Whether a forward that these drafts share needs no KV and no context for its padding.

        Every row of the pool is padded, also those that end soon or are masked.
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

    def facts(self, seq: SeqId, max_draft: int) -> RowFacts:
        """What decides whether prompt lookup may serve the row."""
        row = self._table.row(seq)
        sampling = row.params.sampling
        limit = self._storage.draft_limit(row.slot)
        return RowFacts(
            is_structured=row.hooks is not None,
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
                outcomes |= {outcome.seq: outcome for outcome in self.verify_round(part)}
        return [outcomes[seq] for seq in drafts]

    def verify_round(self, drafts: Mapping[SeqId, Sequence[int]]) -> list[VerifyOutcome]:
        """Write to each row one token more than its draft has right ones; fewer when it finishes.

        Args:
            drafts: rows that decode, with nothing in flight; a draft may be empty.

        Returns:
            An outcome a row, in order.
        """
        held = {seq: self.held_tokens(seq) for seq in drafts}
        try:
            readings = self.forward_drafts(drafts)
        except RowError as error:
            for seq, tokens in held.items():
                self._cut_back(seq, tokens, error)
            ended = self.fail_rows(drafts, error)
            return [
                VerifyOutcome(seq, (step,), len(drafts[seq]), accepted=0, error=error)
                for seq, step in zip(drafts, ended, strict=True)
            ]
        return [
            self._decided(seq, draft, readings[seq], held=held[seq])
            for seq, draft in drafts.items()
        ]

    def forward_drafts(self, drafts: Mapping[SeqId, Sequence[int]]) -> dict[SeqId, RowReading]:
        """Append [current, *draft] to each row and draw after each token."""
        rows = {self._table.row(seq): draft for seq, draft in drafts.items()}
        for row in rows:
            assert row.phase is Phase.DECODE
            assert not row.in_flight, "a verify round never runs with a step in flight"
        try:
            logits = self._forwards.of_drafts(rows)
            drawn, faults = self._forwards.draw_positions(rows, logits)
            reading = self._steps.read(drawn, drawn.readable())
        except guard.BACKEND_ERRORS as error:
            raise EvalFailed(str(error)) from error
        readings: dict[SeqId, RowReading] = {}
        first = 0
        for row, draft in rows.items():
            readings[row.seq] = RowReading(reading, first, faults.get(row))
            first += len(draft) + 1
        return readings

    def commit_position(self, seq: SeqId, reading: RowReading, position: int) -> StepOutcome:
        """Finish the token drawn at a position of a draft."""
        row = self._table.row(seq)
        if reading.fault is not None:
            return fail(row, reading.fault)
        return self._steps.commit(row, reading.drawn, reading.first + position)

    def is_unusable(self, reading: RowReading, position: int) -> bool:
        """Whether nothing could be drawn at a position of a draft."""
        return (
            reading.fault is None and reading.drawn.tokens[reading.first + position] == NOT_FINITE
        )

    def rewind(self, seq: SeqId, tokens: int) -> None:
        """Cut a row's KV back."""
        self._storage.rewind(self._table.row(seq).slot, tokens)

    def wipe(self, seq: SeqId) -> None:
        """Zero what a row's KV was cut back by: NaN there would reach the row's next tokens."""
        self._storage.wipe(self._table.row(seq).slot)

    def held_tokens(self, seq: SeqId) -> int:
        """Tokens a row's KV holds, committed or not."""
        return self._storage.length(self._table.row(seq).slot)

    def fail_rows(self, seqs: Iterable[SeqId], error: RowError) -> list[StepOutcome]:
        """End rows with one error."""
        return self._steps.end([self._table.row(seq) for seq in seqs], error)

    def _decided(
        self,
        seq: SeqId,
        draft: Sequence[int],
        reading: RowReading,
        *,
        held: int,
    ) -> VerifyOutcome:
        steps: list[StepOutcome] = []
        accepted = 0
        for position in range(len(draft) + 1):
            if draft and self.is_unusable(reading, position):
                return self._without_draft(seq, draft, steps, held=held)
            step = self.commit_position(seq, reading, position)
            if step.error is not None:
                self._cut_back(seq, held, step.error)
                return self._failed(seq, draft, step.error, steps)
            steps.append(step)
            # A token that finishes the row is the row's own, even where the draft had it.
            if step.is_final or position == len(draft) or step.token != draft[position]:
                break
            accepted += 1
        try:
            self.rewind(seq, len(draft) - accepted)
        except RowError as error:
            steps[-1] = _unfinished(steps[-1])
            return self._failed(seq, draft, error, steps)
        if any(self.is_unusable(reading, at) for at in range(accepted + 1, len(draft) + 1)):
            self.wipe(seq)
        return VerifyOutcome(seq, tuple(steps), drafted=len(draft), accepted=accepted)

    def _without_draft(
        self, seq: SeqId, draft: Sequence[int], steps: Sequence[StepOutcome], *, held: int
    ) -> VerifyOutcome:
        """Take what a round has accepted, and one plain step in place of the rest."""
        accepted = len(steps)
        try:
            self.rewind(seq, len(draft) + 1 - accepted)
        except RowError as error:
            return self._failed(seq, draft, error, steps)
        self.wipe(seq)
        (plain,) = self.verify_round({seq: ()})
        if plain.error is not None:
            self._cut_back(seq, held, plain.error)
            accepted = 0
        return VerifyOutcome(seq, (*steps, *plain.steps), len(draft), accepted, plain.error)

    def _cut_back(self, seq: SeqId, held: int, error: RowError) -> None:
        """Put a failed row's KV back as it was, which matters to nobody but must not raise."""
        try:
            self.rewind(seq, self.held_tokens(seq) - held)
        except RowError as second:
            error.add_note(f"and its KV could not be cut back: {second}")

    def _failed(
        self,
        seq: SeqId,
        draft: Sequence[int],
        error: RowError,
        steps: Sequence[StepOutcome],
    ) -> VerifyOutcome:
        (ended,) = self.fail_rows([seq], error)
        return VerifyOutcome(seq, (*steps, ended), drafted=len(draft), accepted=0, error=error)


def _unfinished(step: StepOutcome) -> StepOutcome:
    """A step whose row is ended by a failure, whatever the token itself would have done."""
    token = None if step.finish is FinishCause.EOS else step.token
    return replace(step, token=token, finish=None)
