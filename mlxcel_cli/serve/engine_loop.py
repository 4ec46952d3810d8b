"""The engine thread's side of serving: take commands, tick, report once per tick.

Nothing here waits for a client. What a tick came to crosses to the event loop in one call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.scheduler.stats import Counters, SchedulerStats
from mlxcel_cli.serve.channel import (
    Cancel,
    ClearCache,
    Command,
    Counted,
    Drain,
    Drained,
    Ended,
    Loaded,
    Loading,
    Notice,
    Pause,
    Refused,
    Resume,
    Stop,
    Submit,
    Unload,
    Unloaded,
)

if TYPE_CHECKING:
    from engine.models.progress import Progress
    from mlxcel_cli.serve.model_host import HostedModel

logger = logging.getLogger(__name__)

STATS_EVERY_S = 0.1
"""A snapshot of the counts costs some microseconds; nobody looks more often than this."""
DRAIN_POLL_S = 0.02
"""While it drains nothing may come but the deadline."""


Load = Callable[[Callable[["Progress"], None]], "HostedModel"]
"""Loads the model, reporting how far it is."""


class EngineLoop:
    """Owns the model and its scheduler, from the first load to the last tick.

    Args:
        load: brings the model; called again after an idle model was freed.
        inbox: commands.
        report: takes what happened, in order; called from the engine thread.
    """

    def __init__(
        self, load: Load, inbox: SimpleQueue[Command], report: Callable[[list[Notice]], None]
    ) -> None:
        self._load = load
        self._inbox = inbox
        self._report = report
        self._hosted: HostedModel | None = None
        self._before = Counters()
        """Counts of schedulers that were closed."""
        self._counted_s = 0.0
        self._owes_drained = False
        """Whether it was asked to drain and has not."""
        self._owes_reset = False
        """Whether the prompt cache's files are to be dropped with the next load."""

    def run(self) -> None:
        """Load, and serve until `Stop`; reports `Ended` whatever happens."""
        error: BaseException | None = None
        try:
            self._bring()
            while self._run_round():
                pass
        except BaseException as fault:
            error = fault
            raise
        finally:
            with suppress(Exception):
                self._free()
            self._report([Ended(error)])

    # -- one round

    def _run_round(self) -> bool:
        """Obey what waits, tick once and report; False once it is to stop."""
        for command in self._commands():
            if isinstance(command, Stop):
                return False
            self._obey(command)
        notices: list[Notice] = []
        if self._hosted is not None:
            notices += self._hosted.scheduler.tick()
            notices += self._counts()
        notices += self._drained()
        if notices:
            self._report(notices)
        if self._hosted is not None:
            self._hosted.scheduler.flush()
        return True

    def _commands(self) -> Iterator[Command]:
        """What waits; waits itself while there is nothing else to do."""
        with suppress(Empty):
            if self._hosted is None or self._hosted.scheduler.idle:
                yield self._inbox.get(timeout=DRAIN_POLL_S if self._owes_drained else None)
            elif (slack_s := self._hosted.scheduler.slack_s()) > 0:
                yield self._inbox.get(timeout=slack_s)
            while True:
                yield self._inbox.get_nowait()

    def _obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            self._submit(command)
        elif isinstance(command, Unload):
            self._unload()
        elif isinstance(command, Drain):
            self._drain(command)
        elif isinstance(command, ClearCache):
            self._clear_cache()
        elif self._hosted is not None and not isinstance(command, Stop):
            scheduler = self._hosted.scheduler
            does = {Cancel: scheduler.cancel, Pause: scheduler.pause, Resume: scheduler.resume}
            for id_ in command.ids:
                does[type(command)](id_)

    def _submit(self, command: Submit) -> None:
        try:
            self._bring().scheduler.submit(*command.requests)
        except Exception as error:
            if not isinstance(error, EngineError):
                logger.exception("a request could not be taken")
            ids = tuple(request.id for request in command.requests)
            self._report([Refused(ids, error)])

    def _clear_cache(self) -> None:
        self._owes_reset = self._hosted is None
        if self._hosted is not None:
            self._hosted.scheduler.forget_prompts()
            self._report([*self._counts(now=True)])

    def _drain(self, command: Drain) -> None:
        self._owes_drained = True
        if self._hosted is not None:
            self._hosted.scheduler.drain(time.perf_counter() + command.timeout_s)

    def _drained(self) -> list[Notice]:
        if not self._owes_drained:
            return []
        if self._hosted is not None and not self._hosted.scheduler.is_drained:
            return []
        self._owes_drained = False
        return [Drained()]

    # -- the model

    def _bring(self) -> HostedModel:
        """The model, loaded if it is not."""
        if self._hosted is None:
            self._hosted = self._load(lambda progress: self._report([Loading(progress)]))
            if self._owes_reset:
                self._clear_cache()
            self._report([Loaded(self._hosted.model), *self._counts(now=True)])
        return self._hosted

    def _unload(self) -> None:
        if self._hosted is None or not self._hosted.scheduler.idle:
            return
        counts = [Counted(_freed(one.stats)) for one in self._counts(now=True)]
        self._report([*counts, Unloaded()])
        self._free()

    def _free(self) -> None:
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            self._before = _sum(self._before, hosted.scheduler.stats().counters)
            hosted.close()

    def _counts(self, *, now: bool = False) -> list[Counted]:
        assert self._hosted is not None
        scheduler = self._hosted.scheduler
        now_s = time.perf_counter()
        if not (now or scheduler.idle or now_s - self._counted_s >= STATS_EVERY_S):
            return []
        self._counted_s = now_s
        stats = scheduler.stats()
        return [Counted(replace(stats, counters=_sum(self._before, stats.counters)))]


def _freed(stats: SchedulerStats) -> SchedulerStats:
    """The same counts without what a freed model's KV took."""
    cache = stats.cache
    if cache is not None:
        cache = replace(cache, entries=0, tokens=0, nbytes=0, pending=0)
    return replace(stats, kv_rows=0, kv_positions=0, cache=cache)


def _sum(before: Counters, after: Counters) -> Counters:
    """Totals over two schedulers."""
    total = Counters()
    for one in fields(Counters):
        left, right = getattr(before, one.name), getattr(after, one.name)
        if isinstance(left, dict):
            keys = {*left, *right}
            setattr(total, one.name, {key: left.get(key, 0) + right.get(key, 0) for key in keys})
        else:
            setattr(total, one.name, left + right)
    return total
