"""Drafts in a batch: who is asked, who verifies, and when no step stays in flight.

One tick is one of these:
    plain      nobody may be asked: the step in flight is read behind the next one;
    steady     a step is in flight and nobody proposes: the same, so the lookahead stays;
    switch     a step is in flight and somebody proposes: all asks are retracted, the step is read
               and no other is submitted; the next tick asks again, on what is known by then;
    verifying  nothing is in flight and somebody proposes: one forward verifies all drafts and is
               the others' step; where that costs more, rows without a proposal take one step
               together, then each proposing row runs one verify round;
    refilling  nothing is in flight and nobody proposes: one step, and the next one behind it as
               soon as no drafter expects a match.

Invariants (each pinned by a test):
    I1  Without a step in flight every decoding row's KV is prompt + written - 1 tokens, also after
        a verify round; a failed round cuts off all it appended and ends its row.
    I2  A row has at most one append between ticks that is not committed. A verify round never runs
        while a step is in flight.
    I3  The next step is submitted ahead of a read only after every row that may be asked was asked
        in this tick, and none proposed.
    I4  A drafter's context is its own row's prompt and the answer it has observed, nobody else's;
        each ask is followed by a forward of the token it was about, or retracted.
    I5  Asked are rows that may take a step, whose draft has room and whose index is built, while at
        most `LookupSettings.max_batch` rows are active and no row can lose its KV in mid-answer.
        Others are not asked: no miss, no rest, no index; they catch up at their next ask.
    I6  Entering, leaving and ending rows empty no pipeline. A row's drafter starts when its first
        token is read; while a step is in flight, it is asked from the tick on whose step the row is
        in. Preemption drops the drafter.
    I7  What a round raises ends the rows of its forward; what a drafter raises drops the drafter.
        Neighbours go on.
    I8  A cancelled row is gone between ticks; no round is interrupted.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from engine.errors import EngineError, InternalFault, InvalidParams, RowError
from engine.lookup.auto_governor import governor_for
from engine.lookup.drafter import PromptLookup
from engine.lookup.eligibility import server_refusal
from engine.lookup.rounds import DRAFTER_ERRORS
from engine.lookup.widths import WidthCosts, share_pays
from engine.outcome import SeqId, StepOutcome, VerifyOutcome
from engine.params import LookupPolicy
from engine.scheduler.job import Job
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.width_meter import MeasuredEngine, WidthMeter

logger = logging.getLogger(__name__)

INDEX_SLICE_TOKENS = 8192
"""Tokens of all contexts together that one tick indexes: 2 to 3 ms of a core."""


class LookupEngine(MeasuredEngine, Protocol):
    """What is asked of the engine."""

    unmeasured_policy: LookupPolicy

    @property
    def verifies_together(self) -> bool:
        """Whether drafts of several rows can share a forward."""

    def verify_together(self, drafts: Mapping[SeqId, Sequence[int]]) -> list[VerifyOutcome]:
        """Run one verify round of some rows; an empty draft is a plain step."""

    def check_draft(self, draft: Sequence[int]) -> None:
        """Raise InvalidParams for a token id outside the vocabulary."""

    def wants_step(self, seq: SeqId) -> bool:
        """Whether one more step may be submitted."""

    def answer(self, seq: SeqId) -> list[int]:
        """The committed answer."""


class Steps(Protocol):
    """`engine.scheduler.pipeline.Pipeline`, as far as it is used here."""

    @property
    def in_flight(self) -> tuple[SeqId, ...]:
        """Rows of the step that was submitted and not read."""

    def advance(self, seqs: Sequence[SeqId]) -> list[StepOutcome]:
        """Submit a step, then read the one before it."""

    def forget(self, seq: SeqId) -> None:
        """A row was closed."""


@dataclass(slots=True)
class _Row:
    """A row that may draft."""

    seq: SeqId
    name: str
    """Its request's id, for the log."""
    prompt_ids: tuple[int, ...]
    drafter: PromptLookup | None = None
    """None until its first token is read."""
    draft: tuple[int, ...] = ()
    """What it proposes in this tick."""


class BatchLookup:
    """The drafters of one engine's rows, in front of its pipeline.

    Args:
        engine: where the rows live.
        pipeline: the plain steps.
        settings: the scheduler's; without ``lookup`` every tick is plain.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: LookupEngine,
        pipeline: Steps,
        settings: SchedulerSettings,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._pipeline = pipeline
        is_budgeted = settings.kv_budget_tokens is not None
        # Without preemption a row's KV is reserved to its end.
        can_run_out = is_budgeted and settings.limits.preemption is not None
        self._settings = None if can_run_out else settings.lookup
        self._widths = WidthMeter(engine, self._settings, clock, is_budgeted=is_budgeted)
        self._rows: dict[SeqId, _Row] = {}

    @property
    def width_costs(self) -> WidthCosts | None:
        """What verify rounds cost here, once it is known."""
        return self._widths.costs

    # -- rows

    def admit(self, job: Job) -> None:
        """A row's prompt is read, all but its last token at least: may it draft?"""
        settings, seq = self._settings, job.seq
        if settings is None or seq is None:
            return
        if not job.request.is_speculative:
            logger.debug("request %s decodes without prompt lookup: opted-out", job.id)
            return
        facts = self._engine.drafting.facts(seq, settings.speculation.max_draft)
        if reason := server_refusal(facts):
            logger.debug("request %s decodes without prompt lookup: %s", job.id, reason.value)
        elif self._widths.is_sound(job):
            self._rows[seq] = _Row(seq, job.id, job.params.prompt_ids)
            self._start(seq)

    def forget(self, seq: SeqId) -> None:
        """A row was closed; its drafter goes with it."""
        self._rows.pop(seq, None)
        self._pipeline.forget(seq)

    # -- ticks

    def advance(self, seqs: Sequence[SeqId]) -> list[StepOutcome | VerifyOutcome]:
        """One tick of rows that may take a step; what was read, in order."""
        asked = self._ask(seqs)
        outcomes: list[StepOutcome | VerifyOutcome] = []
        if not asked:
            outcomes += self._pipeline.advance(seqs)
        elif not self._pipeline.in_flight:
            outcomes += self._at_rest(seqs, asked)
        elif any(row.draft for row in asked):
            self._retract(asked)
            outcomes += self._pipeline.advance(())
        else:
            outcomes += self._pipeline.advance(seqs)
        for outcome in outcomes:
            self._start(outcome.seq)
        return outcomes

    def _at_rest(
        self, seqs: Sequence[SeqId], asked: Sequence[_Row]
    ) -> list[StepOutcome | VerifyOutcome]:
        """A tick that begins with nothing in flight."""
        proposing = [row for row in asked if row.draft and self._is_sound(row)]
        drafting = {row.seq for row in proposing}
        plain = [seq for seq in seqs if seq not in drafting]
        if self._shares(proposing, plain):
            return self._verify(proposing, plain)
        outcomes: list[StepOutcome | VerifyOutcome] = [*self._pipeline.advance(plain)]
        if self._pipeline.in_flight:
            keeps = not proposing and all(_expects_nothing(row) for row in asked)
            ahead = [seq for seq in plain if keeps and self._engine.wants_step(seq)]
            outcomes += self._pipeline.advance(ahead)
        for row in proposing:
            outcomes += self._verify([row], [])
        return outcomes

    def _is_sound(self, row: _Row) -> bool:
        try:
            self._engine.check_draft(row.draft)
        except InvalidParams as error:  # the drafter made up a token
            self._drop(row, error)
            return False
        return True

    def _shares(self, proposing: Sequence[_Row], plain: Sequence[SeqId]) -> bool:
        """Whether one forward for all of a tick's rows is possible, and the cheaper way."""
        if not proposing or len(proposing) + len(plain) < 2 or not self._engine.verifies_together:
            return False
        drafting, costs = self._engine.drafting, self.width_costs
        if not drafting.padding_fits(_drafts(proposing, plain)):
            return False
        drafts = [len(row.draft) for row in proposing]
        return costs is None or share_pays(drafts, len(plain), costs, rows=drafting.padded_rows)

    def _verify(
        self, proposing: Sequence[_Row], plain: Sequence[SeqId]
    ) -> list[StepOutcome | VerifyOutcome]:
        """One verify round; rows without a draft come first, as in a tick of two forwards."""
        drafts = _drafts(proposing, plain)
        try:
            outcomes = self._engine.verify_together(drafts)
        except Exception as error:
            names = ", ".join(row.name for row in proposing)
            logger.exception("a verify round of request %s failed", names)
            fault = error if isinstance(error, RowError) else InternalFault(error)
            outcomes = [
                VerifyOutcome(seq, (StepOutcome(seq, None, error=fault),), len(draft), 0, fault)
                for seq, draft in drafts.items()
            ]
        told: list[StepOutcome | VerifyOutcome] = []
        for outcome in outcomes[: len(plain)]:
            told += outcome.steps
        for row, outcome in zip(proposing, outcomes[len(plain) :], strict=True):
            told.append(outcome)
            emitted = [step.token for step in outcome.steps if step.token is not None]
            if outcome.error is None:
                with self._drafting(row) as drafter:
                    drafter.accept(row.draft, outcome.accepted, emitted)
        return told

    # -- drafters

    def _start(self, seq: SeqId) -> None:
        """Give a row its drafter once its first token is known."""
        row, settings = self._rows.get(seq), self._settings
        if row is None or row.drafter is not None or settings is None:
            return
        if answer := self._engine.answer(seq):
            governor = governor_for(
                settings.speculation,
                unmeasured=self._engine.unmeasured_policy,
                costs=self.width_costs,
                shares=self._engine.verifies_together,
            )
            row.drafter = PromptLookup(settings.speculation, governor)
            with self._drafting(row) as drafter:
                drafter.start(row.prompt_ids, answer[0])

    def _ask(self, seqs: Sequence[SeqId]) -> list[_Row]:
        """The rows that were asked, each with its draft."""
        settings = self._settings
        if settings is None or not self._rows:
            return []
        if len({*seqs, *self._pipeline.in_flight}) > settings.max_batch:
            return []
        # With a step in flight, only who is in it: who joins is asked about its own step then.
        steady = self._pipeline.in_flight
        able = [seq for seq in seqs if not steady or seq in steady]
        rows = [row for seq in able if (row := self._rows.get(seq)) and row.drafter]
        slice_tokens = INDEX_SLICE_TOKENS // max(1, len(rows))
        return [row for row in rows if self._was_asked(row, slice_tokens, len(seqs) - 1)]

    def _was_asked(self, row: _Row, slice_tokens: int, others: int) -> bool:
        assert self._settings is not None
        row.draft = ()
        room = self._engine.draft_room(row.seq, self._settings.speculation.max_draft)
        if room < 1:
            return False
        answer = self._engine.answer(row.seq)
        with self._drafting(row) as drafter:
            drafter.catch_up(answer)
            if drafter.prepare(slice_tokens):
                # No drafter may make a round longer than the row has room for.
                row.draft = drafter.ask(answer[-1], room, others)[:room]
                return True
        return False

    def _retract(self, asked: Sequence[_Row]) -> None:
        for row in asked:
            with self._drafting(row) as drafter:
                drafter.retract(row.draft)

    @contextmanager
    def _drafting(self, row: _Row) -> Iterator[PromptLookup]:
        """A row's drafter; what it raises drops it."""
        assert row.drafter is not None
        try:
            yield row.drafter
        except DRAFTER_ERRORS as error:
            self._drop(row, error)

    def _drop(self, row: _Row, error: Exception) -> None:
        row.draft = ()
        self._rows.pop(row.seq, None)
        level = logging.WARNING if isinstance(error, EngineError) else logging.ERROR
        logger.log(level, "request %s goes on without prompt lookup: %s", row.name, error)


def _drafts(proposing: Sequence[_Row], plain: Sequence[SeqId]) -> dict[SeqId, Sequence[int]]:
    """What each row of a shared round is fed behind its newest token."""
    return {**dict.fromkeys(plain, ()), **{row.seq: row.draft for row in proposing}}


def _expects_nothing(row: _Row) -> bool:
    return row.drafter is None or row.drafter.pipelines_plain_rounds()
