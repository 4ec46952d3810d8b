"""The one decode loop: plain steps and verify rounds of all rows that decode, one tick at a time.

One tick is one of these:
    plain      nobody may draft: the step in flight is read behind the next one;
    steady     a step is in flight and nobody proposes: the same, so the lookahead stays;
    switch     a step is in flight and somebody proposes: all proposals are discarded, the step is
               read and no other is submitted; the next tick proposes again, on what is known then;
    verifying  nothing is in flight and somebody proposes: one forward verifies all drafts and is
               the others' step; where that costs more, rows without a draft take one step
               together, then each drafting row runs one verify round;
    refilling  nothing is in flight and nobody proposes: one step, and the next one behind it as
               soon as no drafter expects a match.

Invariants (each pinned by a test; I4 to I6 are those of `engine.scheduler.drafters`):
    I1  Without a step in flight every decoding row's KV is prompt + written - 1 tokens, also after
        a verify round; a failed round cuts off all it appended and ends its row.
    I2  A row has at most one append between ticks that is not committed. A verify round never runs
        while a step is in flight.
    I3  The next step is submitted ahead of a read only after every row that may draft was asked for
        a proposal in this tick, and none had one.
    I7  What a round raises ends the rows of its forward; what a drafter raises drops the drafter.
        Neighbours continue.
    I8  A cancelled row is gone between ticks; no round is interrupted.
"""

import logging
from collections.abc import Sequence

from engine.engine import Engine
from engine.errors import InternalFault, RowError
from engine.lookup.widths import share_pays
from engine.outcome import SeqId, StepOutcome, VerifyOutcome
from engine.scheduler.drafters import Drafters
from engine.scheduler.job import Job
from engine.scheduler.pipeline import Pipeline

logger = logging.getLogger(__name__)


class DecodeLoop:
    """Decodes the rows of one engine.

    Args:
        engine: where the rows live.
        pipeline: the plain steps.
        drafters: who proposes what; rows without one take plain steps only.
    """

    def __init__(self, engine: Engine, pipeline: Pipeline, drafters: Drafters) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._drafters = drafters

    def advance(self, jobs: Sequence[Job]) -> list[StepOutcome | VerifyOutcome]:
        """One tick of jobs whose rows may take a step; what was read, in order."""
        seqs = [job.seq for job in jobs if job.seq is not None]
        in_flight = self._pipeline.in_flight
        asked = self._drafters.propose(jobs, in_flight)
        drafting = [job for job in asked if job.drafts.draft]
        if not asked or (in_flight and not drafting):
            return [*self._pipeline.advance(seqs)]
        if in_flight:
            self._drafters.discard(asked)
            return [*self._pipeline.advance(())]
        if not drafting:
            return [*self._step(seqs, keeps=all(_expects_nothing(job) for job in asked))]
        return self._verify(seqs, drafting)

    def _step(self, seqs: Sequence[SeqId], *, keeps: bool) -> list[StepOutcome]:
        """One step, read at once; the next one is submitted before if it ``keeps`` one ahead."""
        outcomes = self._pipeline.advance(seqs)
        if self._pipeline.in_flight:
            ahead = [seq for seq in seqs if keeps and self._engine.wants_step(seq)]
            outcomes += self._pipeline.advance(ahead)
        return outcomes

    def _verify(
        self, seqs: Sequence[SeqId], drafting: Sequence[Job]
    ) -> list[StepOutcome | VerifyOutcome]:
        """Verify all drafts, and a plain step for the rows without one."""
        drafts = {job.seq: job.drafts.draft for job in drafting if job.seq is not None}
        plain = [seq for seq in seqs if seq not in drafts]
        together = {**dict.fromkeys(plain, ()), **drafts}
        if self._shares(together):
            return self._round(together, drafting)
        outcomes: list[StepOutcome | VerifyOutcome] = [*self._step(plain, keeps=False)]
        for job, (seq, draft) in zip(drafting, drafts.items(), strict=True):
            outcomes += self._round({seq: draft}, [job])
        return outcomes

    def _shares(self, drafts: dict[SeqId, tuple[int, ...]]) -> bool:
        """Whether one forward for all of a tick's rows is possible, and the cheaper way."""
        if len(drafts) < 2 or not self._engine.verifies_together:
            return False
        drafting = self._engine.drafting
        if not drafting.padding_fits(drafts):
            return False
        costs = self._drafters.width_costs
        lengths = [len(draft) for draft in drafts.values() if draft]
        plain = len(drafts) - len(lengths)
        return costs is None or share_pays(lengths, plain, costs, rows=drafting.padded_rows)

    def _round(
        self, drafts: dict[SeqId, tuple[int, ...]], drafting: Sequence[Job]
    ) -> list[StepOutcome | VerifyOutcome]:
        """One verify round; rows without a draft come first, as in a tick of two forwards."""
        try:
            outcomes = self._engine.verify_together(drafts)
        except Exception as error:
            names = ", ".join(job.id for job in drafting)
            logger.exception("a verify round of request %s failed", names)
            fault = error if isinstance(error, RowError) else InternalFault(error)
            outcomes = [
                VerifyOutcome(seq, (StepOutcome(seq, None, error=fault),), len(draft), 0, fault)
                for seq, draft in drafts.items()
            ]
        plain = len(drafts) - len(drafting)
        told: list[StepOutcome | VerifyOutcome] = []
        for outcome in outcomes[:plain]:
            told += outcome.steps
        for job, outcome in zip(drafting, outcomes[plain:], strict=True):
            told.append(outcome)
            self._drafters.accept(job, outcome)
        return told


def _expects_nothing(job: Job) -> bool:
    return job.drafts.drafter is None or job.drafts.drafter.pipelines_plain_rounds()
