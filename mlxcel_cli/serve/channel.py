"""What crosses between the event loop and the engine thread, and a bounded queue of it.

Commands and notices are plain frozen values.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.events import Cancelled, Done, Event, Failed
from engine.models.progress import Progress
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.stats import SchedulerStats
from mlxcel_cli.serve.served_model import ServedModel

CAPACITY = 100
"""Events that may wait for a slow reader before its rows are paused."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these requests, all or none."""

    requests: tuple[ScheduledRequest, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End these requests."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause these rows: their reader is behind."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume these rows."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the model, if nothing runs."""


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Empty the prompt cache."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no more requests, and end those that still run after a while."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Free the model and end."""


Command = Submit | Cancel | Pause | Resume | Unload | ClearCache | Drain | Stop
"""What the event loop asks of the engine thread."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How far a load is."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready."""

    model: ServedModel


@dataclass(frozen=True, slots=True)
class Unloaded:
    """The model was freed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Requests that were not queued, and why."""

    ids: tuple[str, ...]
    error: Exception


@dataclass(frozen=True, slots=True)
class Counted:
    """The scheduler's counts at this moment."""

    stats: SchedulerStats


@dataclass(frozen=True, slots=True)
class Drained:
    """The last request has ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine thread's loop has ended; None: because it was stopped."""

    error: BaseException | None


Notice = Event | Loading | Loaded | Unloaded | Refused | Counted | Drained | Ended
"""What the engine thread reports to the event loop."""

ChannelEvent = Event | Refused


class Channel:
    """Events of the rows of one request, in order. Used on the event loop only.

    Args:
        ids: the rows.
        pause: called when the reader is behind.
        resume: called when it has caught up.
    """

    def __init__(
        self,
        ids: tuple[str, ...],
        *,
        pause: Callable[[tuple[str, ...]], None],
        resume: Callable[[tuple[str, ...]], None],
    ) -> None:
        self.ids = ids
        self._running = set(ids)
        self._pause = pause
        self._resume = resume
        self._events: list[ChannelEvent] = []
        self._is_paused = False
        self._wakes: asyncio.Future[None] | None = None

    @property
    def running(self) -> tuple[str, ...]:
        """Rows that have not had their last event."""
        return tuple(id_ for id_ in self.ids if id_ in self._running)

    def put(self, event: ChannelEvent) -> None:
        """Take an event; the rows of a reader that is far behind are paused."""
        if isinstance(event, Refused):
            self._running.clear()
        elif isinstance(event, Done | Failed | Cancelled):
            self._running.discard(event.id)
        self._events.append(event)
        if len(self._events) >= CAPACITY and not self._is_paused and self._running:
            self._is_paused = True
            self._pause(self.running)
        self.wake()

    def wake(self) -> None:
        """Let who waits look again, whether there is something or not."""
        if self._wakes is not None:
            _wake(self._wakes)

    async def take(self, timeout_s: float | None) -> list[ChannelEvent]:
        """All that is there, after waiting for something; empty when time is up or on `wake`.

        Args:
            timeout_s: None: wait for ever.
        """
        if not self._events:
            loop = asyncio.get_running_loop()
            self._wakes = loop.create_future()
            timer = None
            if timeout_s is not None:
                timer = loop.call_later(timeout_s, _wake, self._wakes)
            try:
                await self._wakes
            finally:
                self._wakes = None
                if timer is not None:
                    timer.cancel()
        events, self._events = self._events, []
        if self._is_paused:
            self._is_paused = False
            self._resume(self.running)
        return events


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
