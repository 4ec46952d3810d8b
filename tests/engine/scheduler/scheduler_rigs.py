"""A scheduler under test: requests in, one record per request out, the laws checked each tick."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import EngineError
from engine.events import Cancelled, Delta, Done, Event, Failed, PrefillProgress, Started
from engine.outcome import TokenLogprobs
from engine.params import SamplingParams, SequenceParams
from engine.prefill import PrefillPacer
from engine.rows import Phase
from engine.scheduler.job import Job
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.scheduler import BatchScheduler
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from engine.session import Session
from tests.engine.inside import rows_of, storage_of

each_width = pytest.mark.parametrize("parallel", [1, 4])
"""``--no-batch`` is the same class with one slot."""

PROMPT = (1, 2, 3)


def params(tokens: int = 5, prompt: tuple[int, ...] = PROMPT, **kw: Any) -> SequenceParams:
    """A request for so many tokens."""
    return SequenceParams(prompt, max_tokens=tokens, **kw)


class Clock:
    """Seconds that pass only when a test says so, and a little at each look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s


@dataclass
class Told:
    """Everything a request was told."""

    events: list[Event] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    """The tick of each event."""

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def tokens(self) -> list[int]:
        return [t for event in self.events if isinstance(event, Delta) for t in event.tokens]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [p for event in self.events if isinstance(event, Delta) for p in event.logprobs]

    @property
    def last(self) -> Event | None:
        return self.events[-1] if self.events else None

    @property
    def done(self) -> Done:
        assert isinstance(self.last, Done), self.last
        return self.last

    @property
    def error(self) -> EngineError:
        assert isinstance(self.last, Failed), self.last
        return self.last.error

    @property
    def is_over(self) -> bool:
        return isinstance(self.last, Done | Failed | Cancelled)

    def tick_of(self, kind: type) -> int:
        """The tick of the first event of a kind."""
        return next(
            tick
            for tick, event in zip(self.ticks, self.events, strict=True)
            if isinstance(event, kind)
        )


class Served:
    """A scheduler, and what it told whom."""

    def __init__(
        self,
        engine: Engine,
        *,
        chunk: int | None = 8,
        clock: Callable[[], float] | None = None,
        settings: SchedulerSettings | None = None,
        flushes: bool = True,
        **limits: Any,
    ) -> None:
        self.engine = engine
        self.flushes = flushes
        chosen = settings or SchedulerSettings(Limits(**{"short_tokens": 0, **limits}))
        kw = {} if clock is None else {"clock": clock}
        self.scheduler = BatchScheduler(engine, chosen, pacer=PrefillPacer(chunk), **kw)
        self.told: dict[str, Told] = {}
        self.ticks = 0

    def submit(self, id_: str, params: SequenceParams, **kw: Any) -> Told:
        self.told[id_] = Told()
        self.scheduler.submit(ScheduledRequest(id_, params, **kw))
        return self.told[id_]

    def tick(self) -> list[Event]:
        events = self.scheduler.tick()
        self.ticks += 1
        for event in events:
            told = self.told[event.id]
            assert not told.is_over, "an event after the last one"
            told.events.append(event)
            told.ticks.append(self.ticks)
        self._check()
        if self.flushes and self.ticks % 3:  # a server always does; nobody has to
            self.scheduler.flush()
            self._check()
        return events

    def run(self, *, most: int = 2000) -> None:
        """Tick until there is nothing to do."""
        for _ in range(most):
            if self.scheduler.idle:
                return
            self.tick()
        raise AssertionError(f"not idle after {most} ticks")

    def _goes_on(self, job: Job) -> bool:
        """Whether a row that decodes is in a step or may take one."""
        assert job.seq is not None
        row = rows_of(self.engine)[job.seq]
        return bool(row.lost or row.in_flight or self.engine.wants_step(job.seq))

    def _check(self) -> None:
        """The length law, slots and rows (S1); nobody waits for nothing (S7)."""
        running = self.scheduler._rows
        for job in running.values():
            assert job.is_paused or job.prefill_left or self._goes_on(job), job.id
        assert not self.scheduler.idle or all(job.is_paused for job in running.values())
        rows = rows_of(self.engine)
        cache = self.scheduler._pool.cache
        copied = {donor.seq for donor in cache._exports}
        assert {job.seq for job in running.values()} == set(rows) - copied
        slots = [job.slot for job in running.values()]
        assert len(set(slots)) == len(slots) <= self.scheduler.settings.limits.parallel
        for row in rows.values():
            assert len(row.in_flight) <= 1
            if row.phase is Phase.DECODE and row.lost is None:
                held = storage_of(self.engine).length(row.slot)
                ahead = sum(ticket.appended for ticket in row.in_flight)
                assert held == row.prompt_tokens + row.written - 1 + ahead, row


def alone(
    engine: Engine, params: SequenceParams, stops: Sequence[str] = (), *, chunk: int = 8
) -> tuple[str, Done]:
    """The streamed text and the answer of one request on an engine that serves nobody else."""
    chunks = []
    for event in Session(engine, pacer=PrefillPacer(chunk)).generate(params, stops=stops):
        if isinstance(event, Delta):
            chunks.append(event.text)
        elif isinstance(event, Done):
            return "".join(chunks), event
    raise AssertionError("no answer")


def mixed_requests(count: int) -> list[SequenceParams]:
    """Greedy and seeded, penalised and host-bound, short and long."""
    knobs: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.2},
        {"temperature": 0.7, "dry_multiplier": 0.8, "dry_sequence_breakers": ()},
        {"logprobs": 2},
        {"temperature": 1.0, "mirostat": 2},
    ]
    return [
        SequenceParams(
            tuple((7 * i + 3 * j) % 256 for j in range(1 + (i * 5) % 23)),
            sampling=SamplingParams(**knobs[i % len(knobs)], seed=i),
            max_tokens=3 + (i * 7) % 20,
        )
        for i in range(count)
    ]


def progress(told: Iterable[Event]) -> list[int]:
    """Prompt tokens done at each progress event."""
    return [event.done_tokens for event in told if isinstance(event, PrefillProgress)]


def seeds(told: Iterable[Event]) -> list[int]:
    """The seeds that were reported at the start."""
    return [event.seed for event in told if isinstance(event, Started)]
