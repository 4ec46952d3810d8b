"""Serves many requests on one engine: policy only, every forward and draw is the engine's.

One tick is planned by `plan_tick`, a pure function, and carried out here: requests enter, prompt
chunks are read, one step of all rows that decode is submitted and the step before it is read.

Invariants (each pinned by a test):
    S1  A row's KV is prompt + written - 1 tokens, and one more for each step it has in flight; it
        has at most one between ticks.
    S2  A step in flight is read and committed, unless none of its rows is left; no token is drawn
        again.
    S3  Entering, leaving, failing and finishing rows empty no pipeline but their own.
    S4  What a request raises ends that request; what a step raises ends the rows of that step; what
        planning raises ends that tick's rows. The next tick continues.
    S5  A cancelled request is gone, and its slot free, before the next tick begins.
    S6  Every request gets exactly one last event: Done, Failed or Cancelled.
    S7  A row that is open and not paused is always in a step, a prefill, a queue or ended.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from engine.engine import Engine
from engine.errors import EngineClosed, EngineError, EngineUnhealthy, InternalFault
from engine.events import Event, Failed, PrefillProgress
from engine.finish import FinishCause
from engine.guard import FAILURES_ALLOWED
from engine.outcome import StepOutcome, VerifyOutcome
from engine.prefill import PrefillPacer
from engine.prompt_cache.cache import PromptCache
from engine.scheduler.admission import WaitReason
from engine.scheduler.decode_loop import DecodeLoop
from engine.scheduler.drafters import Drafters
from engine.scheduler.entry import RowPool, Validation
from engine.scheduler.job import Job
from engine.scheduler.pipeline import Pipeline
from engine.scheduler.prefilling import Prefiller
from engine.scheduler.queue import Priority, RequestQueue
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import RowState, TickState
from engine.scheduler.stats import Counters, SchedulerPhase, SchedulerStats
from engine.scheduler.tick import Grant, TickPlan, plan_tick, steps_since_chunk

logger = logging.getLogger(__name__)


class BatchScheduler:
    """Requests in, events out. All calls come from the engine thread, between ticks.

    Args:
        engine: where the rows live; nobody else opens rows on it.
        settings: slots, queue, budget and preemption.
        pacer: how prompts are cut.
        cache: one of this engine that outlives the scheduler; None: as the settings say.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        settings: SchedulerSettings | None = None,
        *,
        pacer: PrefillPacer | None = None,
        cache: PromptCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = SchedulerSettings() if settings is None else settings
        self._engine = engine
        self._clock = clock
        self._validation = Validation(engine, self.settings, clock)
        own = cache or PromptCache(engine, self.settings.prompt_cache, clock=clock)
        self._pool = RowPool(engine, own)
        self._queue: RequestQueue[Job] = RequestQueue(self.settings.queue_depth)
        self._rows: dict[str, Job] = {}
        """Who has a slot, in the order of admission."""
        self._counters = Counters()
        self._pipeline = Pipeline(
            engine, self._counters, clock, is_pipelined=self.settings.is_pipelined
        )
        self._drafters = Drafters(engine, self.settings, clock)
        self._decode = DecodeLoop(engine, self._pipeline, self._drafters)
        self._pacer = pacer or PrefillPacer()
        self._prefiller = Prefiller(
            engine, self._pool, self._drafters, self._pacer, self._counters, clock
        )
        self._interleaved: list[Grant] = []
        """Chunks that wait for `flush`, else for the next tick."""
        self._events: list[Event] = []
        self._phase = SchedulerPhase.SERVING
        self._deadline_s: float | None = None
        self._steps_since_chunk = self.settings.limits.grant_interval
        self._blocked: WaitReason | None = None
        self._has_work = False

    # -- requests

    def submit(self, *requests: ScheduledRequest) -> None:
        """Queue requests, all or none of them.

        Raises:
            QueueFull: too many wait.
            EngineClosed: it drains, or is unhealthy.
            InvalidParams, ContextOverflow, KvBudgetExceeded: one can never run here.
        """
        try:
            self._refuse_when_closed()
            jobs = self._validation.jobs(requests, {*self._rows, *(job.id for job in self._queue)})
            self._queue.push(*jobs, free_slots=self.settings.limits.parallel - len(self._rows))
        except EngineError:
            self._counters.refused += len(requests)
            raise
        self._counters.requests += len(requests)
        self._has_work = True

    def cancel(self, id_: str) -> None:
        """End a request at once, wherever it stands; one that is over or unknown is left alone."""
        job = self._queue.remove(id_) or self._rows.get(id_)
        if job is None:
            return
        has_text = job.is_decoding and job.completion_tokens > 0
        self._leave(job, keeps=has_text or job.request.keeps_unfinished)
        self._events.append(job.cancelled())
        self._counters.cancelled += 1

    def pause(self, id_: str) -> None:
        """Let a row keep its slot and take no further step, because its reader is behind.

        A step it has in flight is still read. One without a slot is paused once it has one.
        """
        if job := self._rows.get(id_) or self._queue.find(id_):
            job.is_paused = True

    def resume(self, id_: str) -> None:
        """Let a paused row continue."""
        if job := self._rows.get(id_) or self._queue.find(id_):
            job.is_paused = False
            self._has_work = True

    # -- ticks

    @property
    def idle(self) -> bool:
        """Whether a tick would do nothing until the next call of another method.

        While it drains, a deadline may still pass: then tick on.
        """
        return not self._has_work

    def slack_s(self) -> float:
        """Seconds for which the next tick may wait for requests without slowing those that run.

        One that comes is read right behind the step in flight; then tick at once. 0: not at all.
        """
        is_open = len(self._rows) < self.settings.limits.parallel and not len(self._queue)
        return self._pipeline.slack_s() if is_open and not self._events else 0.0

    def tick(self) -> list[Event]:
        """Do one round; what it came to, in order."""
        self._counters.ticks += 1
        if self._deadline_s is not None and self._clock() >= self._deadline_s:
            self._end_all(EngineClosed("the server has stopped"))
        self._read_interleaved()
        try:
            state = self._state()
            plan = plan_tick(state)
            self._steps_since_chunk = steps_since_chunk(state, plan)
            self._carry_out(plan)
        except Exception as error:
            logger.exception("a tick of %d rows failed", len(self._rows))
            self._end_all(InternalFault(error), queued=1)
        if not self._engine.health.ok and self._phase is not SchedulerPhase.UNHEALTHY:
            self._give_up()
        events, self._events = self._events, []
        return events

    def flush(self) -> None:
        """Let the device continue once a tick's events are out; may take a step and a chunk."""
        self._engine.flush()
        self._read_interleaved()

    # -- its end

    def drain(self, deadline_s: float | None = None) -> None:
        """Refuse new requests, fail those that never started and let the others finish.

        Args:
            deadline_s: a time of the clock at which what still runs is ended with EngineClosed;
                None: never.
        """
        if self._phase is SchedulerPhase.SERVING:
            self._phase = SchedulerPhase.DRAINING
        self._deadline_s = deadline_s
        for job in list(self._queue):
            if job.started_s is None:
                self._fail(job, EngineClosed("the server is shutting down"))
        self._has_work = True

    @property
    def phase(self) -> SchedulerPhase:
        """Whether it takes new requests."""
        return self._phase

    @property
    def is_drained(self) -> bool:
        """Whether it drains and nothing is left to do or to tell."""
        is_closed = self._phase is not SchedulerPhase.SERVING
        return is_closed and not (self._rows or len(self._queue) or self._events)

    def stats(self) -> SchedulerStats:
        """A snapshot for metrics and status pages."""
        shape = self._validation.shape(len(self._rows))
        return SchedulerStats(
            phase=self._phase,
            parallel=self.settings.limits.parallel,
            slots=tuple(job.slot_stats() for job in self._rows.values()),
            queue_depths=dict(zip(Priority, self._queue.depths, strict=True)),
            queue_capacity=self._queue.capacity,
            blocked=self._blocked,
            counters=self._counters.snapshot(),
            kv_rows=shape.rows,
            kv_positions=shape.positions,
            kv_budget_positions=self.settings.kv_budget_tokens,
            cache=self._pool.cache.stats(),
            width_costs=self._drafters.width_costs,
        )

    def forget_prompts(self) -> None:
        """Empty the prompt cache; rows that run keep what they took from it."""
        self._pool.cache.reset()

    def close(self) -> None:
        """Let the prompt cache write what it has to; nothing is called after this."""
        self._pool.cache.shut_down()

    # -- internals

    def _refuse_when_closed(self) -> None:
        if self._phase is SchedulerPhase.UNHEALTHY:
            raise EngineUnhealthy("the inference backend failed too often; restart the server")
        if self._phase is SchedulerPhase.DRAINING:
            raise EngineClosed("the server is shutting down")

    def _state(self) -> TickState:
        limits = self.settings.limits
        rows: list[RowState] = []
        for job in list(self._rows.values()):
            with self._boundary(job):
                rows.append(job.row_state(wants_step=self._pool.wants_step(job)))
        looked_at = None if len(rows) < limits.parallel else 1  # without a slot, only the first
        waiting = self._pool.waiting(islice(self._queue, looked_at), waits=not rows)
        return TickState(
            limits=limits,
            rows=tuple(rows),
            waiting=waiting,
            chunk_tokens=self._pacer.chunk_tokens,
            interleaved_tokens=self._pacer.interleaved_tokens,
            interleaved_share=self._pacer.interleaved_share,
            steps_are_wide=self._engine.holds_steps,
            steps_since_chunk=self._steps_since_chunk,
            budget=self._validation.budget,
            shape=self._validation.shape(len(self._rows)),
        )

    def _carry_out(self, plan: TickPlan) -> None:
        self._blocked = plan.blocked
        self._has_work = bool(self._pipeline.in_flight)
        self._counters.mixed_ticks += plan.is_mixed
        for newcomer in plan.admitted:
            self._enter(newcomer.waiting.id, is_long=newcomer.is_long)
        self._interleaved = [grant for grant in plan.prefill if grant.is_interleaved]
        joining = [self._read(grant) for grant in plan.prefill if not grant.is_interleaved]
        decoding = [self._rows.get(id_) for id_ in plan.decode]
        self._step([job for job in [*decoding, *joining] if job is not None])
        for id_ in plan.preempt:
            self._preempt(id_)
        self._pool.cache.advance()
        self._has_work |= not plan.is_empty or bool(self._pipeline.in_flight)
        self._has_work |= self._pool.cache.is_copying

    def _enter(self, id_: str, *, is_long: bool) -> None:
        """Give a request of the queue its slot."""
        job = self._queue.remove(id_)
        assert job is not None
        with self._boundary(job):
            busy = {other.slot for other in self._rows.values()}
            self._rows[job.id] = job
            self._pool.open(job, busy, is_long=is_long)
            self._drafters.admit(job)
            if job.started_s is None:
                self._events.append(job.start(self._clock()))
                self._counters.started += 1
            if job.params.max_tokens == 0:
                self._finish(job, FinishCause.LENGTH)

    def _read_interleaved(self) -> None:
        """Read what waits for the step that the last tick submitted."""
        while self._interleaved:
            self._read(self._interleaved.pop(0))

    def _read(self, grant: Grant) -> Job | None:
        """Prefill a chunk of a prompt; its job, if the row is to join this tick's step."""
        job = self._rows.get(grant.id)
        if job is None:
            return None
        with self._boundary(job):
            outcome = self._prefiller.read(job, grant)
            if outcome is not None:
                self._take(job, outcome)
                if grant.is_alone:  # nothing is in flight: its first token goes out first
                    return None
            if job.seq is not None and self._pool.wants_step(job):
                return job
            if job.first_s is None and outcome is None:
                done = PrefillProgress(job.id, job.done_tokens, job.prompt_tokens)
                self._events.append(done)
        return None

    def _step(self, stepping: list[Job]) -> None:
        """Let the rows of these jobs take a step, and take what was read."""
        jobs = {job.seq: job for job in self._rows.values()}
        for outcome in self._decode.advance(stepping):
            job = jobs.get(outcome.seq)
            if job is None or job.id not in self._rows:
                continue
            with self._boundary(job):
                self._counters.note(outcome)
                self._take(job, outcome)

    def _take(self, job: Job, outcome: StepOutcome | VerifyOutcome) -> None:
        last = job.note(outcome, self._clock())
        if (delta := job.take_delta()) is not None:
            self._events.append(delta)
        if last.error is not None:
            self._fail(job, last.error)
        elif last.finish is not None:
            self._finish(job, last.finish)
        else:
            self._drafters.start(job)

    @contextmanager
    def _boundary(self, job: Job) -> Iterator[None]:
        """The row boundary: whatever is raised inside ends this job and nothing else."""
        try:
            yield
        except EngineError as error:
            self._fail(job, error)
        except Exception as error:
            logger.exception("request %s failed", job.id)
            self._fail(job, InternalFault(error))

    def _finish(self, job: Job, finish: FinishCause) -> None:
        self._leave(job, keeps=True)
        self._events.append(done := job.done(finish))
        finished = self._counters.finished
        finished[finish] = finished.get(finish, 0) + 1
        self._counters.prompt_tokens += job.prompt_tokens
        self._counters.generation_s += done.timings.predicted_s

    def _fail(self, job: Job, error: EngineError) -> None:
        self._leave(job)
        self._events.append(Failed(job.id, error))
        self._counters.failed += 1

    def _leave(self, job: Job, *, keeps: bool = False) -> None:
        """Take a job out, wherever it stands, and free its row; ``keeps`` what a good one read."""
        self._queue.remove(job.id)
        self._rows.pop(job.id, None)
        self._has_work = True
        seq = job.seq
        job.leave_slot()
        self._counters.completion_tokens += job.completion_tokens
        if seq is not None:
            self._pipeline.forget(seq)
            self._pool.close(seq, keeps=keeps, id_=job.id)

    def _preempt(self, id_: str) -> None:
        """Send a row back to the queue, unless it ended meanwhile."""
        if (job := self._rows.get(id_)) is None:
            return
        with self._boundary(job):
            assert job.seq is not None
            preempted = self._pool.preempt(job.seq)
            self._pipeline.forget(job.seq)
            del self._rows[id_]
            job.requeue(preempted)
            self._queue.push_back_in(job)
            self._counters.preemptions += 1

    def _end_all(self, error: EngineError, *, queued: int | None = None) -> None:
        """Fail every row, and the first ``queued`` of the queue (None: all of it)."""
        for job in [*self._rows.values(), *list(self._queue)[:queued]]:
            self._fail(job, error)

    def _give_up(self) -> None:
        self._phase = SchedulerPhase.UNHEALTHY
        logger.error("the inference backend failed %d times in a row", FAILURES_ALLOWED)
        self._end_all(EngineUnhealthy("the inference backend failed too often"))
