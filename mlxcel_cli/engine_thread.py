"""The one thread that owns MLX: it runs jobs in order and streams what they produce.

MLX's arrays, streams and random state belong to the thread that made them, and a forward
cannot be interrupted. So every front end does its engine work here and keeps its own thread
free for keys, signals and sockets. Only ints, floats, strings, tuples and frozen values cross.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from engine.errors import EngineClosed

ENGINE_THREAD_NAME = "mlxcel-engine"

T = TypeVar("T")
Emit = Callable[[T], None]
"""Sends one item to the caller's side from inside a job, for progress callbacks."""


class StreamClosed(Exception):
    """Raised inside a job, by its ``emit``, when nobody reads its stream any more."""


class EngineThread:
    """Runs jobs one after the other on the thread that owns MLX.

    Use it as a context manager. Leaving it ends the thread: after an exception without
    waiting, because a forward or a load may still be running; ``join`` waits.
    """

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._pending: set[Callable[[BaseException], None]] = set()
        # A daemon, so that a hard exit need not wait for a forward.
        self._thread = threading.Thread(target=self._run, name=ENGINE_THREAD_NAME, daemon=True)
        self._thread.start()

    def __enter__(self) -> "EngineThread":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self.join()

    def call(self, job: Callable[[], T]) -> T:
        """``job()`` run on the engine thread; what it raises is raised here.

        Raises:
            EngineClosed: the thread has ended, or ends before the job's turn.
        """
        return next(iter(self.stream(lambda _: iter((job(),)))))

    def stream(self, make: Callable[[Emit[T]], Iterator[T]]) -> "Stream[T]":
        """What the iterator ``make(emit)`` yields, made and advanced on the engine thread.

        Items that ``make`` or the iterator pass to ``emit`` come in between, in order.

        Raises:
            EngineClosed: the thread has ended.
        """
        stream: Stream[T] = Stream()
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine has stopped")
            self._pending.add(stream.fail)
            self._inbox.put(lambda: self._produce(stream, make))
        return stream

    def close(self) -> None:
        """Let the thread end after the job it is running; jobs that wait get EngineClosed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _produce(self, stream: "Stream[T]", make: Callable[[Emit[T]], Iterator[T]]) -> None:
        try:
            _pump(stream, make)
        finally:
            with self._lock:
                self._pending.discard(stream.fail)

    def _run(self) -> None:
        try:
            while self._run_next():
                pass
        finally:
            with self._lock:
                self._closed = True
                orphans, self._pending = self._pending, set()
            for fail in orphans:
                fail(EngineClosed("the engine has stopped"))
            _release_mlx()

    def _run_next(self) -> bool:
        # A frame of its own: what the job held is freed before MLX's streams are.
        job = self._inbox.get()
        if job is None or self._closed:
            return False
        job()
        return True


class Stream(Generic[T]):
    """Items of a job, read on the caller's thread; closing it cancels the job.

    Iterate over it for single items, over ``bursts()`` for all that is there at each look.
    What the job raised is raised after the items that came before it.
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[T | _End] = SimpleQueue()
        self._cancelled = threading.Event()
        self._over = False

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        for burst in self.bursts():
            yield from burst

    def bursts(self) -> Iterator[tuple[T, ...]]:
        """Wait for an item, then take whatever else is there: one hop for many tokens."""
        while not self._over:
            burst: list[T] = []
            end = self._gather(burst)
            if burst:
                yield tuple(burst)
            if end is not None:
                self._over = True
                if end.error is not None:
                    raise end.error

    def close(self) -> None:
        """Cancel the job: it ends between two items, or at its next ``emit``. Idempotent."""
        self._over = True
        self._cancelled.set()

    def put(self, item: T) -> None:
        """Engine side: send one item.

        Raises:
            StreamClosed: nobody reads any more.
        """
        self.check()
        self._items.put(item)

    def check(self) -> None:
        """Engine side: return only if somebody still reads.

        Raises:
            StreamClosed: nobody reads any more.
        """
        if self._cancelled.is_set():
            raise StreamClosed

    def fail(self, error: BaseException) -> None:
        """Engine side: end the stream with an error."""
        self._items.put(_End(error))

    def finish(self) -> None:
        """Engine side: end the stream well."""
        self._items.put(_End(None))

    def _gather(self, burst: list[T]) -> "_End | None":
        item = self._items.get()
        while not isinstance(item, _End):
            burst.append(item)
            try:
                item = self._items.get_nowait()
            except Empty:
                return None
        return item


class _End:
    """Marks the end of a stream, and how it came."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _pump(stream: Stream[T], make: Callable[[Emit[T]], Iterator[T]]) -> None:
    """Advance the job's iterator until it ends, fails or is cancelled, and close it here."""
    try:
        stream.check()
        items = make(stream.put)
        try:
            for item in items:
                stream.put(item)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
    except StreamClosed:
        stream.finish()
    except BaseException as error:  # noqa: BLE001 - it is raised on the caller's side
        stream.fail(_as_exception(error))
    else:
        stream.finish()


def _as_exception(error: BaseException) -> BaseException:
    """The error as one that callers expect: a panic in Rust code (tokenizers) derives from none.

    What ends a process ends it on the caller's side too.
    """
    if isinstance(error, Exception | SystemExit | KeyboardInterrupt):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _release_mlx() -> None:
    """Give MLX's streams back, if a job has used it.

    Without this a thread that ran a model aborts the process at exit, in 12 of 40 runs
    (mlx 0.32.4).
    """
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        # A backend that has failed refuses to synchronise; its failure was reported already.
        with suppress(RuntimeError):
            mx.synchronize()
        mx.clear_streams()
