"""What a long job on a model's files reports while it runs."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a download, a conversion or a wait."""

    stage: str
    """What is being done, as a person reads it: ``"downloading the starter"``."""

    done: int
    """Bytes done so far in this stage."""

    total: int | None
    """Bytes of the whole stage, None when nobody knows."""


ProgressReport = Callable[[Progress], None]
"""Takes one report; called on the thread that does the work."""


def no_report(_: Progress) -> None:
    """Takes a report and drops it."""
