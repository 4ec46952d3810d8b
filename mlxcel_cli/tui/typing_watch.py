"""When a key came last: what is not urgent gives way to showing it."""

import time
from collections.abc import Callable

SHOWN_S = 0.05
"""How long a key may take to be shown."""

MOST_HELD_S = 0.15
"""How long something gives way at most, while one key follows another."""


class TypingWatch:
    """Tells how long to give way to the user's keys.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key_s = float("-inf")

    def note_key(self) -> None:
        """A key came."""
        self._key_s = self._clock()

    @property
    def now_s(self) -> float:
        """What the clock says."""
        return self._clock()

    def left_s(self, since_s: float) -> float:
        """How long still to give way with what has waited since then; 0 or less: no longer."""
        until = min(self._key_s + SHOWN_S, since_s + MOST_HELD_S)
        return until - self._clock()
