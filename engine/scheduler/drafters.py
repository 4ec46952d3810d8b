"""The drafters of a batch: which rows have one, when it proposes, and why it is dropped.

Invariants (each pinned by a test; the others are those of `engine.scheduler.decode_loop`):
    I4  A drafter's context is its own row's prompt and the answer it has observed, and the
        reference texts of its request; each proposal is followed by a forward of the token it was
        about, or discarded.
    I5  Asked are rows that may take a step, whose draft has room and whose index is built, while at
        most `LookupSettings.max_batch` rows are active and no row can lose its KV in mid-answer.
        Others are not asked: no miss, no rest, no index; they catch up at their next proposal.
    I6  Entering, leaving and ending rows empty no pipeline. A row's drafter starts when its first
        token is read; while a step is in flight, it is asked from the tick on whose step the row is
        in. Preemption drops the drafter.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.engine import Engine
from engine.errors import EngineError, EvalFailed
from engine.lookup.auto_governor import governor_for
from engine.lookup.drafter import PromptLookup
from engine.lookup.eligibility import Refusal, refusal
from engine.lookup.warm_up import every_width, few_widths, warm_up_verify_widths
from engine.lookup.widths import WidthCosts
from engine.outcome import SeqId, VerifyOutcome
from engine.params import LookupPolicy, SpeculationParams
from engine.scheduler.job import Job
from engine.scheduler.settings import LookupSettings, SchedulerSettings

logger = logging.getLogger(__name__)

INDEX_SLICE_TOKENS = 8192
"""Tokens of all contexts together that one tick indexes: 2 to 3 ms of a core."""

DRAFTER_ERRORS = (
    EngineError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a faulty drafter raises: guessing may cost its row nothing."""


class Drafters:
    """The drafters of one engine's rows; each is kept in its `Job`.

    Args:
        engine: where the rows live.
        settings: the scheduler's.
        clock: seconds, monotonic.
    """

    def __init__(
        self, engine: Engine, settings: SchedulerSettings, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._settings = settings.lookup or LookupSettings(None)
        self._clock = clock
        self._is_budgeted = settings.kv_budget_tokens is not None
        # Without preemption a row's KV is reserved to its end.
        self._can_run_out = self._is_budgeted and settings.limits.preemption is not None
        self._tried_draft = 0
        """Longest draft whose widths were measured here, or could not be."""
        self.width_costs: WidthCosts | None = self._settings.width_costs
        """What verify rounds cost here; None until known: then ``auto`` weighs drafts by it."""

    # -- rows

    def admit(self, job: Job) -> None:
        """Decide how a row that was just opened drafts, if it does (`Job.drafts`)."""
        request = job.request
        wanted = request.params.speculation
        if wanted is None and self._settings.speculation is not None:
            if request.is_speculative:
                wanted = self._settings.speculation
            else:
                logger.debug("request %s decodes without prompt lookup: opted-out", job.id)
        job.drafts.speculation = job.drafts.refused = None
        if wanted is None or job.seq is None:
            return
        if self._can_run_out:
            job.drafts.refused = Refusal.KV_CAN_RUN_OUT
        else:
            job.drafts.refused = refusal(self._engine.drafting.facts(job.seq, wanted.max_draft))
        if job.drafts.refused is None:
            job.drafts.speculation = wanted
        else:
            reason = job.drafts.refused.value
            logger.debug("request %s decodes without prompt lookup: %s", job.id, reason)

    def measure(self, job: Job) -> None:
        """Measure what verify rounds cost, if that is wanted, not done yet and possible on a row.

        Args:
            job: all of its prompt but the last token is prefilled, and nothing of it is in flight.
                Its row is left as it was.
        """
        speculation = job.drafts.speculation
        if speculation is None or job.seq is None or not self._must_measure(speculation):
            return
        max_draft = speculation.max_draft
        if self._room(job, job.seq, max_draft) < max_draft:
            return
        self._tried_draft = max_draft
        choose = every_width if self._settings.builds_kernels else few_widths
        try:
            self.width_costs = warm_up_verify_widths(
                self._engine.drafting, job.seq, choose(max_draft), self._clock
            )
        except EvalFailed as error:  # what fails here would fail in a round too
            logger.warning("what drafts cost could not be measured: %s", error)
            job.drafts.drop(str(error))

    def start(self, job: Job) -> None:
        """Give a row its drafter once its first token is known."""
        speculation = job.drafts.speculation
        if speculation is None or job.drafts.drafter is not None or job.seq is None:
            return
        if answer := self._engine.answer(job.seq):
            governor = governor_for(
                speculation,
                unmeasured=self._engine.unmeasured_policy,
                costs=self.width_costs,
                shares=self._engine.verifies_together,
            )
            job.drafts.drafter = PromptLookup(
                speculation, governor, references=job.request.references
            )
            with self._drafting(job) as drafter:
                drafter.start(job.params.prompt_ids, answer[0])

    # -- proposals

    def propose(self, jobs: Sequence[Job], in_flight: Sequence[SeqId]) -> list[Job]:
        """The jobs that were asked for a draft, each with its own in `Job.drafts`.

        Args:
            jobs: whose rows may take a step.
            in_flight: rows of the step that is not read.
        """
        # With a step in flight, only who is in it: who joins is asked about its own step then.
        able = [
            job for job in jobs if job.drafts.drafter and (not in_flight or job.seq in in_flight)
        ]
        if not able or len({*(job.seq for job in jobs), *in_flight}) > self._settings.max_batch:
            return []
        # A row alone holds nobody up.
        slice_tokens = INDEX_SLICE_TOKENS // len(able) if len(jobs) > 1 else None
        return [job for job in able if self._was_asked(job, slice_tokens, len(jobs) - 1)]

    def discard(self, jobs: Sequence[Job]) -> None:
        """Take back what was just proposed: no forward follows."""
        for job in jobs:
            with self._drafting(job) as drafter:
                drafter.discard(job.drafts.draft)

    def accept(self, job: Job, outcome: VerifyOutcome) -> None:
        """Let a drafter learn from the round that verified its draft."""
        if outcome.error is None:
            emitted = [step.token for step in outcome.steps if step.token is not None]
            with self._drafting(job) as drafter:
                drafter.accept(job.drafts.draft, outcome.accepted, emitted)

    # -- internals

    def _was_asked(self, job: Job, slice_tokens: int | None, others: int) -> bool:
        assert job.seq is not None
        assert job.drafts.speculation is not None
        job.drafts.draft = ()
        room = self._engine.draft_room(job.seq, job.drafts.speculation.max_draft)
        if room < 1:
            return False
        answer = self._engine.answer(job.seq)
        with self._drafting(job) as drafter:
            drafter.catch_up(answer)
            if drafter.prepare(slice_tokens):
                # No drafter may make a round longer than the row has room for.
                draft = drafter.propose(answer[-1], room, others)[:room]
                self._engine.check_draft(draft)
                job.drafts.draft = draft
                return True
        return False

    @contextmanager
    def _drafting(self, job: Job) -> Iterator[PromptLookup]:
        """A job's drafter; what it raises drops it."""
        assert job.drafts.drafter is not None
        try:
            yield job.drafts.drafter
        except DRAFTER_ERRORS as error:
            level = logging.WARNING if isinstance(error, EngineError) else logging.ERROR
            logger.log(level, "request %s continues without prompt lookup: %s", job.id, error)
            job.drafts.drop(str(error))

    def _must_measure(self, speculation: SpeculationParams) -> bool:
        """Whether a policy needs the costs, or kernels have to be built."""
        if not self._settings.builds_kernels and speculation.policy is not LookupPolicy.AUTO:
            return False
        known = 0 if self.width_costs is None else self.width_costs.max_draft
        return max(known, self._tried_draft) < speculation.max_draft

    def _room(self, job: Job, seq: SeqId, max_draft: int) -> int:
        """Tokens that a measurement may append to a row."""
        if self._is_budgeted or not self._settings.measures_short:
            return self._engine.draft_room(seq, max_draft)
        bound = job.params.context_tokens
        return max_draft if bound is None else bound - job.prefill_tokens - 1
