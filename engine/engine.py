"""The one way from a prompt to tokens: model, KV storage and rows behind a few calls.

Every forward and every draw of the product happens behind this class. A single sequence is a
batch of one; ``step`` is exactly ``collect(submit(...))``.

Invariants (each pinned by a test):
    E1  ``submit`` reads nothing from the device: step n+1 is dispatched before token n is read.
    E2  What ``collect`` read is committed; no token is ever drawn twice.
    E3  The length law of `engine.sequence` holds after every call; what is cut when a row ends
        is exactly its tickets in flight.
    E4  An error of one row ends that row; a failed shared forward ends the rows of that step
        once, and the engine is usable afterwards.
    E5  No forward follows the token that spends the budget (`wants_step`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import mlx.core as mx

from engine import guard
from engine.commit import commit, fail
from engine.errors import (
    ContextOverflow,
    EvalFailed,
    InvalidParams,
    RowError,
    UnknownSequence,
)
from engine.finish import FinishRules, context_is_full
from engine.forwards import Forwards, readable
from engine.health import Health
from engine.kv.choose import choose_storage
from engine.kv.pool import CAPACITY_STEP
from engine.outcome import PrefillOutcome, SeqId, StepOutcome
from engine.params import SequenceParams, seeded
from engine.prefill import PrefillPiece
from engine.sampling.plan import Draw, DrawReading, read_draw
from engine.sampling.row_sampler import RowSampler
from engine.sequence import Phase, RowHooks, Sequence
from engine.text.breakers import breaker_ids
from engine.ticket import Ticket

if TYPE_CHECKING:
    from engine.models.load import LoadedModel, ModelFacts
    from engine.text.row_text import RowText


class Engine:
    """A model and its rows. All calls come from the thread that made it.

    Args:
        loaded: what `engine.models.load` gave.
        context_tokens: most tokens a row may hold; None: the model's own context.
        clear_every: generated tokens between cache clears; 0 is never.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        context_tokens: int | None = None,
        clear_every: int = 256,
    ) -> None:
        self.facts: ModelFacts = loaded.facts
        own = loaded.facts.context_tokens
        self.context_tokens = own if context_tokens is None else min(own, context_tokens)
        self.health = Health()
        self.choice = choose_storage(
            loaded.model, family=loaded.facts.family, context_tokens=self.context_tokens
        )
        self._storage = self.choice.storage
        self._forwards = Forwards(loaded.model, self._storage)
        self.tokenizer = loaded.tokenizer
        self._eos_ids = loaded.eos_ids
        self._clear_every = clear_every
        self._rows: dict[SeqId, Sequence] = {}
        self._next_seq = 0

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
        self._check_ids(params)
        bound = self.context_tokens
        if params.context_tokens is not None:
            bound = min(bound, params.context_tokens)
        if len(params.prompt_ids) >= bound:
            raise ContextOverflow(len(params.prompt_ids), bound)
        seq = SeqId(self._next_seq)
        eos_ids = self._eos_ids | params.stop_ids
        rules = FinishRules(
            eos_ids=frozenset() if params.ignore_eos else eos_ids,
            max_tokens=params.max_tokens,
            context_tokens=bound,
            loop=params.loop,
        )
        params = seeded(params)
        row = Sequence(seq, params, rules, self._sampler(params, eos_ids), text, hooks)
        row.slot = self._storage.open(_expected_tokens(params, bound))
        self._next_seq += 1
        self._rows[seq] = row
        return seq

    def close(self, seq: SeqId) -> None:
        """Free a row and what it has in flight; closing twice is harmless."""
        row = self._rows.pop(seq, None)
        if row is None:
            return
        row.phase = Phase.FINISHED
        row.in_flight.clear()
        if row.lost is None:
            self._storage.close(row.slot, failed=row.failed)

    # -- prefill

    def prefill(self, seq: SeqId, piece: PrefillPiece) -> PrefillOutcome:
        """Forward one piece of the prompt; the last one draws and finishes the first token.

        An error of the forward or the draw is in ``first.error``; the row is over then.
        """
        row = self._row(seq)
        if row.lost is not None:
            return PrefillOutcome(seq, piece.start, row.prompt_tokens, fail(row, row.lost))
        assert row.phase is Phase.PREFILL
        assert piece.start == self._storage.length(row.slot), "pieces come in order"
        try:
            first = self._prefilled(row, piece)
        except guard.BACKEND_ERRORS as error:
            (first,) = self._failure([row], EvalFailed(str(error)))
        except RowError as error:
            (first,) = self._failure([row], error)
        return PrefillOutcome(seq, piece.stop, row.prompt_tokens, first)

    # -- decode

    def wants_step(self, seq: SeqId) -> bool:
        """Whether one more step may be submitted for the row before its tickets are read."""
        row = self._row(seq)
        if row.phase is not Phase.DECODE:
            return False
        ahead = row.written + len(row.in_flight)
        if row.rules.max_tokens is not None and ahead >= row.rules.max_tokens:
            return False
        return not context_is_full(ahead, row.prompt_tokens, row.rules)

    def step(self, seqs: Iterable[SeqId]) -> list[StepOutcome]:
        """One token for every row."""
        return self.collect(self.submit(seqs))

    def submit(self, seqs: Iterable[SeqId]) -> Ticket:
        """Dispatch one step of rows that decode; reads nothing (E1).

        A step that cannot be dispatched gives a ticket whose rows fail when it is collected.
        """
        rows = [self._row(seq) for seq in seqs]
        assert rows, "a step has at least one row"
        assert all(
            row.lost or (row.phase is Phase.DECODE and len(row.in_flight) < 2) for row in rows
        )
        self._fit()
        ticket = Ticket(self._forwards.layout([row for row in rows if row.lost is None]))
        ticket.faults = {row: row.lost for row in rows if row.lost is not None}
        if ticket.rows:
            self._dispatch(ticket)
        for row in rows:
            row.in_flight.append(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> list[StepOutcome]:
        """Read a ticket's tokens and finish each of its rows that still waits for it."""
        rows = {row: i for row, i in ticket.rows.items() if ticket in row.in_flight}
        outcomes = [
            self._settled(row, fail(row, error))
            for row, error in ticket.faults.items()
            if ticket in row.in_flight
        ]
        try:
            reading = self._read(ticket)
        except RowError as error:
            return outcomes + self._failure([row for row in rows if not row.failed], error)
        for row, index in rows.items():
            if row in ticket.faults:
                continue
            row.in_flight.remove(ticket)
            outcomes.append(self._committed(row, reading, index))
        self._draw_waiting(rows)
        return outcomes

    # -- internals

    def _prefilled(self, row: Sequence, piece: PrefillPiece) -> StepOutcome | None:
        logits = self._forwards.of_row(row, row.ids[piece.start : piece.stop])
        if not piece.is_last:
            guard.evaluate(self._storage.arrays())
            mx.clear_cache()
            return None
        drawn = self._forwards.draw_positions(row, row.ids, logits[-1:])
        reading = self._reading(drawn, readable(drawn, logits[-1:]))
        row.phase = Phase.DECODE
        return self._committed(row, reading, 0)

    def _settled(self, row: Sequence, outcome: StepOutcome) -> StepOutcome:
        """Cut what a finished row has in flight; a failed cut beats any finish."""
        if not outcome.is_final:
            if self._clear_every and row.written % self._clear_every == 0:
                mx.clear_cache()
            return outcome
        ahead = sum(ticket.appended for ticket in row.in_flight)
        row.in_flight.clear()
        try:
            self._storage.rewind(row.slot, ahead)
        except RowError as error:
            return fail(row, error)
        return outcome

    def _dispatch(self, ticket: Ticket) -> None:
        try:
            self._forwards.dispatch(ticket)
        except guard.BACKEND_ERRORS as error:
            ticket.error = EvalFailed(str(error))
        except RowError as error:
            ticket.error = error

    def _read(self, ticket: Ticket) -> DrawReading:
        if ticket.error is not None:
            raise ticket.error
        if not ticket.rows:
            return DrawReading((), (), ())
        if ticket.draw is None:
            self._forwards.draw(ticket)
        assert ticket.draw is not None
        assert ticket.readable is not None
        return self._reading(ticket.draw, ticket.readable)

    def _reading(self, drawn: Draw, tokens: mx.array) -> DrawReading:
        """Wait for a draw and read it; ``tokens`` are the drawn ones with the faulty marked."""
        values = [guard.read(array) for array in (tokens, *drawn.arrays()[1:])]
        self.health.succeeded()
        return read_draw(drawn, values)

    def _committed(self, row: Sequence, reading: DrawReading, index: int) -> StepOutcome:
        token = reading.tokens[index]
        row.sampler.observe(token, reading.feedback[index])
        return self._settled(row, commit(row, token, reading.logprobs[index]))

    def _draw_waiting(self, rows: Iterable[Sequence]) -> None:
        """Draw the steps that waited for the tokens just read (the row pipeline)."""
        for ticket in {row.in_flight[0] for row in rows if row.in_flight}:
            if ticket.draw is not None or ticket.error is not None or not ticket.rows:
                continue
            if any(ticket in row.in_flight[1:] for row in ticket.rows):
                continue
            try:
                self._forwards.draw(ticket)
            except guard.BACKEND_ERRORS as error:
                ticket.error = EvalFailed(str(error))
            except RowError as error:
                ticket.error = error

    def _failure(self, rows: Iterable[Sequence], error: RowError) -> list[StepOutcome]:
        """End the rows of a failed forward or read; it counts once, however many they are."""
        if isinstance(error, EvalFailed):
            self.health.failed()
            self._check_storage(error)
        outcomes = []
        for row in rows:
            row.in_flight.clear()
            outcomes.append(fail(row, error))
        return outcomes

    def _check_storage(self, error: RowError) -> None:
        """After a backend fault: if the shared arrays cannot be computed, every row is lost."""
        try:
            guard.evaluate(self._storage.arrays())
        except EvalFailed:
            for row in self._rows.values():
                row.lost = error
                row.failed = True
            self._storage.reset()

    def _fit(self) -> None:
        """Let the storage shrink; rows learn their new slots."""
        moved = self._storage.fit()
        if moved is not None:
            slots = {old: new for new, old in enumerate(moved)}
            for row in self._rows.values():
                row.slot = slots[row.slot]

    def _row(self, seq: SeqId) -> Sequence:
        row = self._rows.get(seq)
        if row is None:
            raise UnknownSequence(f"sequence {seq} is not open")
        return row

    def _check_ids(self, params: SequenceParams) -> None:
        """Ids past the logits width are memory-unsafe on MLX's CPU backend."""
        vocab = self.facts.vocab_size
        named = (
            ("prompt", params.prompt_ids),
            ("logit_bias", params.sampling.logit_bias),
            ("stop_ids", params.stop_ids),
        )
        for field, ids in named:
            for token in ids:
                if not 0 <= token < vocab:
                    raise InvalidParams(
                        field, f"token id {token} is outside this model's {vocab} tokens"
                    )

    def _sampler(self, params: SequenceParams, eos_ids: frozenset[int]) -> RowSampler:
        sampling = params.sampling
        breakers: tuple[tuple[int, ...], ...] = ()
        if sampling.has_dry:
            breakers = breaker_ids(self.tokenizer, sampling.dry_sequence_breakers)
        return RowSampler(
            sampling,
            seed=sampling.seed or 0,
            choice=params.choice,
            vocab_size=self.facts.vocab_size,
            eos_ids=eos_ids,
            suppress_eos=params.ignore_eos,
            min_tokens=params.min_tokens,
            prompt_tokens=len(params.prompt_ids),
            dry_breakers=breakers,
        )


def _expected_tokens(params: SequenceParams, bound: int) -> int:
    """Room to make at once: the prompt and the first growth step, not a whole open end."""
    answer = CAPACITY_STEP if params.max_tokens is None else min(params.max_tokens, CAPACITY_STEP)
    return min(bound, len(params.prompt_ids) + answer)
