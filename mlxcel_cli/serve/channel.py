"""Carries one HTTP request's events from the engine to its handler; bounded."""

import asyncio
from collections.abc import Callable

from engine.events import Cancelled, Done, Event, Failed
from mlxcel_cli.serve.messages import Refused

CAPACITY = 100
"""Events that may wait for a slow reader before its rows are held."""

ChannelEvent = Event | Refused


class Channel:
    """Events of the rows of one request, in order. Used on the event loop only.

    Args:
        ids: the rows.
        hold: told when the reader is behind.
        release: told when it has caught up.
    """

    def __init__(
        self,
        ids: tuple[str, ...],
        *,
        hold: Callable[[tuple[str, ...]], None],
        release: Callable[[tuple[str, ...]], None],
    ) -> None:
        self.ids = ids
        self._running = set(ids)
        self._hold = hold
        self._release = release
        self._events: list[ChannelEvent] = []
        self._is_held = False
        self._wakes: asyncio.Future[None] | None = None

    @property
    def running(self) -> tuple[str, ...]:
        """Rows that have not had their last event."""
        return tuple(id_ for id_ in self.ids if id_ in self._running)

    def put(self, event: ChannelEvent) -> None:
        """Take an event; a reader that is far behind has its rows held."""
        if isinstance(event, Refused):
            self._running.clear()
        elif isinstance(event, Done | Failed | Cancelled):
            self._running.discard(event.id)
        self._events.append(event)
        if len(self._events) >= CAPACITY and not self._is_held and self._running:
            self._is_held = True
            self._hold(self.running)
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
        if self._is_held:
            self._is_held = False
            self._release(self.running)
        return events


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
