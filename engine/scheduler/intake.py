"""Checks a request against the engine before it is queued, so that a bad one is refused at once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.engine import Engine
from engine.errors import InvalidParams
from engine.kv.pool import CAPACITY_STEP, ROW_BUCKETS
from engine.params import seeded
from engine.rows import check_ids
from engine.scheduler.admission import context_bound
from engine.scheduler.budget import KvBudget, KvGeometry, KvShape
from engine.scheduler.job import Job
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings

GROWTH_TOKENS = CAPACITY_STEP
"""What a row must have room to write when it enters and rows can be preempted: the engine makes as
much room for the first one, and with less it would leave before it has paid for its prefill."""


class Intake:
    """Makes jobs of requests that can run here, and knows the KV they share.

    Args:
        engine: where they will run.
        settings: the budget, and whether rows can be preempted.
        clock: seconds, monotonic.
    """

    def __init__(
        self, engine: Engine, settings: SchedulerSettings, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._storage = engine.choice.storage
        self._clock = clock
        geometry = KvGeometry(ROW_BUCKETS, CAPACITY_STEP, is_pooled=self._storage.batches)
        self.budget = KvBudget(geometry, settings.kv_budget_tokens)
        """What all rows together may allocate."""
        self._most = settings.limits.parallel + settings.queue_depth
        self._growth_tokens = None if settings.limits.preemption is None else GROWTH_TOKENS

    def jobs(self, requests: Sequence[ScheduledRequest], known: set[str]) -> list[Job]:
        """The records of requests that are taken together or not at all.

        Args:
            requests: what is asked for.
            known: ids in use.

        Raises:
            InvalidParams: they are more than slots and queue ever hold, an id is in use, or as
                `job` says.
            ContextOverflow, KvBudgetExceeded: as `job` says.
        """
        if len(requests) > self._most:
            raise InvalidParams(
                "n", f"asks for {len(requests)} answers at once; at most {self._most} fit here"
            )
        for request in requests:
            if request.id in known:
                raise InvalidParams("id", f"{request.id!r} is in use by another request")
            known.add(request.id)
        return [self.job(request) for request in requests]

    def job(self, request: ScheduledRequest) -> Job:
        """The record of a request that can run.

        Raises:
            InvalidParams: a token id is outside the vocabulary, or a feature is not served.
            ContextOverflow: the context leaves no room for an answer.
            KvBudgetExceeded: the KV budget does not.
        """
        params = request.params
        if params.speculation is not None:
            raise InvalidParams("speculation", "is not supported by the scheduler")
        check_ids(params, self._engine.facts.vocab_size)
        bound = context_bound(params, self._engine.context_tokens, self.budget)
        return Job(
            request,
            replace(seeded(params), context_tokens=bound),
            bound=bound,
            growth_tokens=self._growth_tokens,
            now_s=self._clock(),
        )

    def shape(self, open_rows: int) -> KvShape:
        """What the storage has allocated; an idle one holds nothing."""
        if not open_rows:
            return KvShape()
        return KvShape(self._storage.rows, self._storage.capacity)
