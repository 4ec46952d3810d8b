"""Holds the requests that wait: bounded, three strict priorities, first come first served."""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from engine.errors import QueueFull


class Priority(IntEnum):
    """Lanes of the queue; a lower value always goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Waiting(Protocol):
    """What the queue asks of an entry."""

    @property
    def id(self) -> str:
        """Unique among the entries."""

    @property
    def priority(self) -> Priority:
        """Its lane."""


E = TypeVar("E", bound=Waiting)


class RequestQueue(Generic[E]):
    """Entries in the order in which they are to be admitted.

    Args:
        capacity: most entries that `push` lets wait.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lanes: dict[Priority, deque[E]] = {priority: deque() for priority in Priority}

    def push(self, *entries: E, free_slots: int = 0) -> None:
        """Take all of the entries or none.

        Args:
            entries: the new ones.
            free_slots: entries that need not wait, because a slot is free for them.

        Raises:
            QueueFull: they would not all fit.
        """
        if len(self) + len(entries) > self.capacity + free_slots:
            raise QueueFull(len(self), self.capacity)
        for entry in entries:
            self._lanes[entry.priority].append(entry)

    def push_back_in(self, entry: E) -> None:
        """Put an entry that was admitted once at the head of its lane, whatever the capacity."""
        self._lanes[entry.priority].appendleft(entry)

    def find(self, id_: str) -> E | None:
        """An entry, wherever it stands; None when it is not here."""
        return next((entry for entry in self if entry.id == id_), None)

    def remove(self, id_: str) -> E | None:
        """Take an entry out, wherever it stands; None when it is not here."""
        entry = self.find(id_)
        if entry is not None:
            self._lanes[entry.priority].remove(entry)
        return entry

    def __iter__(self) -> Iterator[E]:
        """The entries in their order; the queue must not change meanwhile."""
        for lane in self._lanes.values():
            yield from lane

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    @property
    def depths(self) -> tuple[int, int, int]:
        """How many wait in each lane."""
        high, normal, low = (len(lane) for lane in self._lanes.values())
        return high, normal, low
