"""How requests enter: validation before they are queued, and the pool that their rows come from."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from engine.engine import Engine
from engine.errors import InvalidParams
from engine.kv.pool import CAPACITY_STEP, ROW_BUCKETS
from engine.outcome import SeqId
from engine.params import seeded
from engine.prompt_cache.cache import PromptCache
from engine.rows import PreemptedRow, check_ids
from engine.scheduler.admission import context_bound
from engine.scheduler.budget import KvBudget, KvGeometry, KvShape
from engine.scheduler.job import Job
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import WaitingState
from engine.text.row_text import RowText

logger = logging.getLogger(__name__)

GROWTH_TOKENS = CAPACITY_STEP
"""What a row must have room to write when it enters and rows can be preempted: the engine makes as
much room for the first one, and with less it would leave before it has paid for its prefill."""


class Validation:
    """Makes jobs of requests that can run here, so that a bad one is refused before it is queued.

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
            InvalidParams: a token id is outside the vocabulary.
            ContextOverflow: the context leaves no room for an answer.
            KvBudgetExceeded: the KV budget does not.
        """
        params = request.params
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


class RowPool:
    """Opens the rows of jobs and frees them, with what the prompt cache has and takes.

    Args:
        engine: where they live.
        cache: of this engine.
    """

    def __init__(self, engine: Engine, cache: PromptCache) -> None:
        self._engine = engine
        self.cache = cache

    def open(self, job: Job, busy: Collection[int] = (), *, is_long: bool = False) -> SeqId:
        """Give a job a row and the first slot that is not busy."""
        seq = self._opened(job)
        slot = next(slot for slot in range(len(busy) + 1) if slot not in busy)
        cached_tokens = self._engine.cached_tokens(seq)
        job.assign_slot(seq, slot, cached_tokens=cached_tokens, is_long=is_long)
        return seq

    def _opened(self, job: Job) -> SeqId:
        """A row for a job: with the KV of a cached prefix, or where it was preempted."""
        request = job.request
        if job.preempted is not None:
            seq = self._engine.resume(job.preempted)
            self.cache.resume(seq, job.params, request.cache)
            return seq
        context = job.params.prompt_ids if request.continues_text else ()
        job.text = RowText.of(self._engine.tokenizer, request.stops, request.keep_texts, context)
        return self.cache.open(job.params, text=job.text, hooks=request.hooks, use=request.cache)

    def preempt(self, seq: SeqId) -> PreemptedRow:
        """Close a row that is to continue later."""
        preempted = self._engine.preempt(seq)
        self.cache.drop(seq)
        return preempted

    def wants_step(self, job: Job) -> bool:
        """Whether one more step may be submitted for a job's row.

        Raises:
            RowError: it can never end (`Engine.check_row`); no step of its own will say so.
        """
        assert job.seq is not None
        self._engine.check_row(job.seq)
        return self._engine.wants_step(job.seq)

    def close(self, seq: SeqId, *, keeps: bool, id_: str = "") -> None:
        """Free a row of request ``id_``; ``keeps``: it ended well, and may be cached."""
        try:
            self.cache.close(seq, keeps=keeps)
        except Exception:
            logger.exception("the row of request %s could not be closed", id_)

    def waiting(self, jobs: Iterable[Job], *, waits: bool) -> tuple[WaitingState, ...]:
        """The requests that may enter: what the prompt cache is still to bring waits in the queue.

        Args:
            jobs: the queue, in its order.
            waits: whether to wait for the first one's KV; no row runs that this would delay.
        """
        ready = []
        for at, job in enumerate(jobs):
            job.cached.is_ready = job.cached.is_ready or self.cache.is_ready(
                job.params, job.request.cache, job.cached.fetched, waits=waits and not at
            )
            if job.cached.is_ready:
                ready.append(self.waiting_state(job))
        return tuple(ready)

    def waiting_state(self, job: Job) -> WaitingState:
        """How admission sees a request: what is cached of its prompt needs no forward."""
        if job.preempted is not None:
            job.cached.covered = (0, -1)
        elif job.cached.covered[1] != self.cache.changes:
            job.cached.covered = (
                self.cache.covered(job.params, job.request.cache),
                self.cache.changes,
            )
        return job.waiting_state()
