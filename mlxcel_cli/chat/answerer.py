"""Runs a backend on a thread of its own: loads a model, answers, stops, ends in order."""

from collections.abc import Callable
from typing import Any

from engine.models.progress import Progress
from mlxcel_cli.answers import AnswerEvent, AnswerRequest, Backend, ModelReport, ModelRequest
from mlxcel_cli.engine_thread import EngineThread, Stream

LAST_WAIT_S = 0.5
"""How long closing waits for a forward that cannot be interrupted."""


class Answerer:
    """One backend on its thread; at most one answer is being written.

    Args:
        backend: what loads and answers.
        interrupt: called from another thread to wake a backend that waits for a network.
    """

    def __init__(self, backend: Backend, *, interrupt: Callable[[], None] | None = None) -> None:
        self._backend = backend
        self._interrupt = interrupt
        self._thread = EngineThread()
        self._running: Stream[Any] | None = None

    def load(self, request: ModelRequest) -> Stream[Progress | ModelReport]:
        """Load a model in place of the current one; the report comes last."""
        loading: Stream[Progress | ModelReport] = self._thread.stream(
            lambda emit: iter((self._backend.load(request, emit),))
        )
        self._running = loading
        return loading

    def answer(self, request: AnswerRequest) -> Stream[AnswerEvent]:
        """The events of one answer."""
        answer: Stream[AnswerEvent] = self._thread.stream(lambda _: self._backend.answer(request))
        self._running = answer
        return answer

    def stop(self) -> None:
        """Cancel what runs: it ends between two forwards. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.close()
            # A reader that waits for the next event is woken.
            running.finish()
            if self._interrupt is not None:
                self._interrupt()

    def close(self) -> None:
        """Cancel what runs and end the thread; waits a moment at most."""
        self.stop()
        self._thread.close()
        self._thread.join(LAST_WAIT_S)
