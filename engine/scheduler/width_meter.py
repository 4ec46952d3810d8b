"""Measures once what verify rounds cost here, on the first row that may draft."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.errors import EvalFailed
from engine.lookup.eligibility import RequestFacts
from engine.lookup.warm_up import WidthEngine, every_width, few_widths, warm_up_verify_widths
from engine.outcome import SeqId
from engine.params import LookupPolicy
from engine.scheduler.job import Job
from engine.scheduler.settings import LookupSettings

logger = logging.getLogger(__name__)


class Drafting(WidthEngine, Protocol):
    """`engine.lookup.verify.Drafting`, as far as it is used here."""

    @property
    def padded_rows(self) -> int:
        """Rows of a forward that several drafts share."""

    def padding_fits(self, drafts: Mapping[SeqId, Sequence[int]]) -> bool:
        """Whether a forward that these drafts share needs nothing for its padding."""

    def facts(self, seq: SeqId, max_draft: int) -> RequestFacts:
        """What decides whether the row may draft."""


class MeasuredEngine(Protocol):
    """What is asked of the engine."""

    @property
    def drafting(self) -> Drafting:
        """Forwards of several tokens."""

    def draft_room(self, seq: SeqId, max_draft: int) -> int:
        """Most tokens a draft may have now."""


class WidthMeter:
    """The costs of verify rounds, from the settings or from one measurement.

    Args:
        engine: where the rows live.
        settings: None: nothing is ever measured.
        clock: seconds, monotonic.
        is_budgeted: whether rows share a budget of KV, so that the measurement may append no more
            than the row it is made on has reserved.
    """

    def __init__(
        self,
        engine: MeasuredEngine,
        settings: LookupSettings | None,
        clock: Callable[[], float],
        *,
        is_budgeted: bool,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._is_budgeted = is_budgeted
        self._was_tried = False
        self.costs = None if settings is None else settings.width_costs
        """None until they are known; then the policy ``auto`` weighs drafts by them."""

    def is_sound(self, job: Job) -> bool:
        """Measure if that is still to be done and possible; False if the row must not draft.

        Args:
            job: may draft; all of its prompt but the last token is read, and nothing of it is in
                flight. It is left as it was.
        """
        settings, seq = self._settings, job.seq
        if settings is None or seq is None or self._was_tried or not self._is_wanted(settings):
            return True
        max_draft = settings.speculation.max_draft
        if self._room(job, seq, max_draft) < max_draft:
            return True
        self._was_tried = True
        choose = every_width if settings.builds_kernels else few_widths
        try:
            self.costs = warm_up_verify_widths(
                self._engine.drafting, seq, choose(max_draft), self._clock
            )
        except EvalFailed as error:  # what fails here would fail in a round too
            logger.warning("what drafts cost could not be measured: %s", error)
            return False
        return True

    def _is_wanted(self, settings: LookupSettings) -> bool:
        """Whether a policy needs the costs, or kernels have to be built."""
        if not settings.builds_kernels and settings.speculation.policy is not LookupPolicy.AUTO:
            return False
        return self.costs is None or self.costs.max_draft < settings.speculation.max_draft

    def _room(self, job: Job, seq: SeqId, max_draft: int) -> int:
        """Tokens that may be appended to the row, whatever its answer may take."""
        if self._is_budgeted:
            return self._engine.draft_room(seq, max_draft)
        bound = job.params.context_tokens
        return max_draft if bound is None else bound - job.prefill_tokens - 2
