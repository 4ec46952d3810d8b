"""What crosses between the event loop and the engine thread: plain frozen values, both ways."""

from dataclasses import dataclass

from engine.events import Event
from engine.models.progress import Progress
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.stats import SchedulerStats
from mlxcel_cli.serve.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these requests, all or none."""

    requests: tuple[ScheduledRequest, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End these requests."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Let these rows wait: their reader is behind."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Let these rows go on."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """Free the model, if nothing runs."""


@dataclass(frozen=True, slots=True)
class ForgetPrompts:
    """Empty the prompt cache."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no more requests, and end those that still run after a while."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Free the model and end."""


Command = Submit | Cancel | Hold | Release | Unload | ForgetPrompts | Drain | Stop
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
    """Nothing runs any more, and nothing will."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine thread's loop is over; None: as it was asked to."""

    error: BaseException | None


Notice = Event | Loading | Loaded | Unloaded | Refused | Counted | Drained | Ended
"""What the engine thread tells the event loop."""
