"""Waits for the engine on a thread and posts what it sends: one load or answer at a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from textual.message import Message
from textual.widget import Widget

from engine.errors import EngineError
from engine.models.progress import Progress
from mlxcel_cli.answers import AnswerEvent, AnswerRequest, ModelReport, ModelRequest
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.engine_thread import Stream

FRAME_S = 0.06
"""Between two looks for events: a screen need not be drawn for every token."""

E = TypeVar("E")


@dataclass
class LoadEvents(Message, bubble=False):
    """How far a load is; its report comes last."""

    job: int
    events: tuple[Progress | ModelReport, ...]


@dataclass
class AnswerEvents(Message, bubble=False):
    """What came of an answer since the last look."""

    job: int
    events: tuple[AnswerEvent, ...]


@dataclass
class JobFailed(Message, bubble=False):
    """A load or an answer ended with an error."""

    job: int
    error: Exception


class Jobs:
    """Loads and answers; events of one that was stopped carry an old number.

    Args:
        answerer: loads and answers.
        owner: the widget that the messages are posted to.
    """

    def __init__(self, answerer: Answerer, owner: Widget) -> None:
        self._answerer = answerer
        self._owner = owner
        self.current = 0
        """Number of the job whose events count."""

    def load(self, request: ModelRequest) -> None:
        """Load a model; LoadEvents say how it goes."""
        self.stop()
        job = self.current
        self._watch(self._answerer.load(request), lambda burst: LoadEvents(job, burst))

    def answer(self, request: AnswerRequest) -> None:
        """Answer; AnswerEvents say what comes."""
        self.stop()
        job = self.current
        self._watch(self._answerer.answer(request), lambda burst: AnswerEvents(job, burst))

    def stop(self) -> None:
        """Cancel what runs."""
        self.current += 1
        self._answerer.stop()

    def close(self) -> None:
        """Cancel what runs and let the engine's thread end."""
        self.current += 1
        self._answerer.close()

    def _watch(self, stream: Stream[E], message: Callable[[tuple[E, ...]], Message]) -> None:
        job = self.current

        def wait() -> None:
            try:
                for burst in stream.bursts():
                    self._owner.post_message(message(burst))
                    time.sleep(FRAME_S)
            except (EngineError, OSError, MemoryError) as error:
                self._owner.post_message(JobFailed(job, error))

        # What else it raises ends the app.
        self._owner.run_worker(wait, thread=True)
