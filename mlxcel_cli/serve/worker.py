"""The event loop's side of the scheduler: submits, cancels, and hands events to requests."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from queue import SimpleQueue
from typing import Protocol

from engine.errors import EngineClosed, EngineError, EngineUnhealthy, QueueFull
from engine.events import Cancelled, Done, Failed
from engine.models.progress import Progress
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.stats import SchedulerPhase, SchedulerStats
from mlxcel_cli.engine_thread import Emit, EngineThread
from mlxcel_cli.serve.channel import (
    Cancel,
    Channel,
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
from mlxcel_cli.serve.engine_loop import EngineLoop, Load
from mlxcel_cli.serve.errors import loading_error
from mlxcel_cli.serve.served_model import ServedModel


class ServerPhase(StrEnum):
    """What the server can do now."""

    LOADING = "loading"
    SERVING = "serving"
    ASLEEP = "asleep"
    """The model was freed; the next request loads it again."""
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    """The backend failed too often."""
    DEAD = "dead"
    """The engine thread is gone."""


_REFUSALS: Mapping[ServerPhase, Callable[[], EngineError]] = {
    ServerPhase.DEAD: lambda: EngineClosed("the engine has stopped; restart the server"),
    ServerPhase.UNHEALTHY: lambda: EngineUnhealthy(
        "the inference backend failed too often; restart the server"
    ),
    ServerPhase.DRAINING: lambda: EngineClosed("the server is shutting down"),
}
"""Why no request is taken any more."""


class EngineRunner(Protocol):
    """`EngineThread`, as far as it is used here."""

    def stream(self, make: Callable[[Emit[None]], Iterator[None]]) -> object:
        """Run a job on the engine's thread, without waiting for it."""

    def close(self) -> None:
        """Let the thread end after its job."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has ended."""


class EngineWorker:
    """Requests in, events out, on the event loop; the engine thread does the work.

    Args:
        load: brings the model, on the engine thread.
        on_progress: called with how far a load is.
        make_thread: gives the thread that MLX belongs to.
    """

    def __init__(
        self,
        load: Load,
        *,
        on_progress: Callable[[Progress], None],
        make_thread: Callable[[], EngineRunner] = EngineThread,
    ) -> None:
        self._load = load
        self._make_thread = make_thread
        self._on_progress = on_progress
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._channels: dict[str, Channel] = {}
        self._is_draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: EngineRunner | None = None
        self._loaded = asyncio.Event()
        self._drained = asyncio.Event()
        self.model: ServedModel | None = None
        self.stats: SchedulerStats | None = None
        self.fault: BaseException | None = None
        """What ended the engine thread."""
        self._is_loaded = False
        self._has_ended = False
        self.read_tokens = 0
        """Prompt tokens that were forwarded, summed over the finished requests."""
        self.read_s = 0.0
        """Seconds that this took."""
        self.used_s = 0.0
        """When a request last came or went, by the event loop's clock."""
        self.refused = 0
        """Requests that were sent away before the engine heard of them."""

    # -- life

    async def start(self) -> ServedModel:
        """Start the engine thread and wait for the model.

        Raises:
            EngineError, OSError: why there is none.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = self._make_thread()
        engine = EngineLoop(self._load, self._inbox, self._receive)

        def run() -> Iterator[None]:
            engine.run()
            yield

        # `Ended` reports its end, its errors too.
        self._thread.stream(lambda _: run())
        await self._loaded.wait()
        if self.model is None:
            assert self.fault is not None
            raise self.fault
        return self.model

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, and return once the running ones have ended or were ended."""
        if self._has_ended:
            return
        self._is_draining = True
        self._inbox.put(Drain(timeout_s))
        await self._drained.wait()

    def stop(self, timeout_s: float) -> bool:
        """End the engine thread; whether it has ended in that time."""
        self._inbox.put(Stop())
        if self._thread is None:
            return True
        self._thread.close()
        return self._thread.join(timeout_s)

    def unload(self) -> None:
        """Free the model, if nothing runs."""
        if not self._channels:
            self._inbox.put(Unload())

    def clear_cache(self) -> None:
        """Empty the prompt cache."""
        self._inbox.put(ClearCache())

    @property
    def phase(self) -> ServerPhase:
        """What the server can do now."""
        if self._has_ended:
            return ServerPhase.DEAD
        if self.stats is not None and self.stats.phase is SchedulerPhase.UNHEALTHY:
            return ServerPhase.UNHEALTHY
        if self._is_draining:
            return ServerPhase.DRAINING
        if self.model is None:
            return ServerPhase.LOADING
        return ServerPhase.SERVING if self._is_loaded else ServerPhase.ASLEEP

    @property
    def is_busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._channels)

    # -- requests

    def ready_model(self) -> ServedModel:
        """The model, when requests can be taken.

        Raises:
            ApiError: it loads.
            EngineClosed: the server ends, or the engine is broken.
        """
        phase = self.phase
        if phase in _REFUSALS:
            raise _REFUSALS[phase]()
        if self.model is None:
            raise loading_error()
        return self.model

    def refuse_when_full(self, slots: int, queue_depth: int) -> None:
        """Send a request away that would find neither slot nor place in the queue.

        Raises:
            QueueFull: as many run and wait as may.
        """
        waiting = len(self._channels) - slots
        if waiting >= queue_depth and waiting >= 0:
            self.refused += 1
            raise QueueFull(waiting, queue_depth)

    def open(self, requests: tuple[ScheduledRequest, ...]) -> Channel:
        """Submit requests; what becomes of them comes through the channel, even a refusal.

        Raises:
            EngineClosed: the server ends, or the engine is broken.
        """
        self.ready_model()
        ids = tuple(request.id for request in requests)
        channel = Channel(
            ids,
            pause=lambda rows: self._inbox.put(Pause(rows)),
            resume=lambda rows: self._inbox.put(Resume(rows)),
        )
        self._channels |= dict.fromkeys(ids, channel)
        self._touch()
        self._inbox.put(Submit(requests))
        return channel

    def close(self, channel: Channel) -> None:
        """Forget a request; rows that still run are cancelled."""
        running = channel.running
        for id_ in channel.ids:
            self._channels.pop(id_, None)
        self._touch()
        if running:
            self._inbox.put(Cancel(running))

    # -- what the engine thread reports

    def _receive(self, notices: list[Notice]) -> None:
        """Take notices, on the engine thread; a closed event loop gets none."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handle, notices)

    def _handle(self, notices: list[Notice]) -> None:
        for notice in notices:
            match notice:
                case Loading():
                    self._on_progress(notice.progress)
                case Loaded():
                    self._loaded_model(notice.model)
                case Unloaded():
                    self._is_loaded = False
                case Counted():
                    self.stats = notice.stats
                case Drained():
                    self._drained.set()
                case Ended():
                    self._end(notice.error)
                case Refused():
                    self._refuse(notice)
                case _:
                    self._forward(notice)

    def _loaded_model(self, model: ServedModel) -> None:
        self.model = model
        self._is_loaded = True
        self._touch()
        self._loaded.set()

    def _forward(self, event: Notice) -> None:
        id_: str = getattr(event, "id")  # noqa: B009 - every event of the scheduler has one
        if isinstance(event, Done):
            self.read_tokens += event.timings.prompt_n
            self.read_s += event.timings.prompt_s
        channel = self._channels.get(id_)
        if channel is None:
            return
        if isinstance(event, Done | Failed | Cancelled):
            del self._channels[id_]
            self._touch()
        channel.put(event)  # type: ignore[arg-type]

    def _refuse(self, notice: Refused) -> None:
        channels = {id(c): c for one in notice.ids if (c := self._channels.pop(one, None))}
        for channel in channels.values():
            channel.put(notice)

    def _end(self, error: BaseException | None) -> None:
        self._has_ended = True
        self.fault = error
        self._loaded.set()
        self._drained.set()
        self._fail_all()

    def _fail_all(self) -> None:
        """Fail every request: the engine is gone."""
        channels = {id(channel): channel for channel in self._channels.values()}
        self._channels.clear()
        for channel in channels.values():
            channel.put(Refused(channel.ids, _REFUSALS[ServerPhase.DEAD]()))

    def _touch(self) -> None:
        if self._loop is not None:
            self.used_s = self._loop.time()
