"""What the thread that waits for the engine tells the screen."""

from dataclasses import dataclass

from textual.message import Message

from engine.models.progress import Progress
from mlxcel_cli.answers import AnswerEvent, ModelReport


@dataclass
class LoadEvents(Message):
    """How far a load is; its report comes last."""

    job: int
    events: tuple[Progress | ModelReport, ...]


@dataclass
class AnswerEvents(Message):
    """What came of an answer since the last look."""

    job: int
    events: tuple[AnswerEvent, ...]


@dataclass
class JobFailed(Message):
    """A load or an answer ended with an error."""

    job: int
    error: Exception
