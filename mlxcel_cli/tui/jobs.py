"""Waits for the engine on a thread and tells the screen: one load or answer at a time."""

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from textual.message import Message

from engine.errors import EngineError
from mlxcel_cli.answers import AnswerRequest, ModelRequest
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.engine_thread import Stream
from mlxcel_cli.tui.messages import AnswerEvents, JobFailed, LoadEvents

FRAME_S = 0.06
"""Between two looks for events: a screen need not be drawn for every token."""

E = TypeVar("E")


class Screen(Protocol):
    """What is told, from any thread."""

    def post_message(self, message: Message) -> bool:
        """Queue a message."""

    def run_worker(self, work: Callable[[], None], *, thread: bool) -> Any:
        """Run ``work`` on a thread; what it raises ends the app."""


class Jobs:
    """Loads and answers; what a stopped one still tells carries an old number."""

    def __init__(self, answerer: Answerer, screen: Screen) -> None:
        self._answerer = answerer
        self._screen = screen
        self.current = 0
        """Number of the job whose events count."""

    def load(self, request: ModelRequest) -> None:
        """Load a model; LoadEvents tell how it goes."""
        self.stop()
        job = self.current
        stream = self._answerer.load(request)
        self._watch(
            stream, lambda burst: LoadEvents(job, burst), lambda error: JobFailed(job, error)
        )

    def answer(self, request: AnswerRequest) -> None:
        """Answer; AnswerEvents tell what comes."""
        self.stop()
        job = self.current
        stream = self._answerer.answer(request)
        self._watch(
            stream, lambda burst: AnswerEvents(job, burst), lambda error: JobFailed(job, error)
        )

    def stop(self) -> None:
        """Cancel what runs."""
        self.current += 1
        self._answerer.stop()

    def close(self) -> None:
        """Cancel what runs and let the engine's thread end."""
        self.current += 1
        self._answerer.close()

    def _watch(
        self,
        stream: Stream[E],
        tell: Callable[[tuple[E, ...]], Message],
        fail: Callable[[Exception], Message],
    ) -> None:
        def wait() -> None:
            try:
                for burst in stream.bursts():
                    self._screen.post_message(tell(burst))
                    time.sleep(FRAME_S)
            except (EngineError, OSError, MemoryError) as error:
                self._screen.post_message(fail(error))

        self._screen.run_worker(wait, thread=True)
