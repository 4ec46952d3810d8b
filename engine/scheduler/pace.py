"""Estimates how long the device is busy with the step in flight.

The next step must be submitted before that one ends, and need not be submitted earlier: a request
that comes meanwhile is then read right behind the step in flight, not behind two.
"""

from collections import deque

REMEMBERED_STEPS = 8
"""Steps the estimate looks back on; the shortest of them counts, so that it errs to early."""

MARGIN_S = 0.001
"""What a thread may wake up late."""

BUSY_SHARE = 0.1
"""A read that blocked for less of its step found the device done: that step tells no length."""


class StepPace:
    """How long steps take, and the host's part of them."""

    def __init__(self) -> None:
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._host_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._read_s: float | None = None

    def note(self, *, began_s: float, submitted_s: float, read_s: float, is_steady: bool) -> None:
        """Learn from one tick.

        Args:
            began_s: when the next step's submission began.
            submitted_s: when it was submitted and the wait for the step before began.
            read_s: when that one was read.
            is_steady: whether both steps are of the same rows.
        """
        before_s, self._read_s = self._read_s, read_s
        if not is_steady or before_s is None:
            self.forget()
            self._read_s = read_s
            return
        step_s = read_s - before_s
        if read_s - submitted_s < BUSY_SHARE * step_s:
            # The device ran dry, perhaps because the estimate was too long.
            self.forget()
            self._read_s = read_s
            return
        self._steps_s.append(step_s)
        self._host_s.append(submitted_s - began_s)

    def forget(self) -> None:
        """Start anew: other rows take other times."""
        self._steps_s.clear()
        self._host_s.clear()
        self._read_s = None

    def slack_s(self, now_s: float) -> float:
        """Seconds from now after which the next step should be submitted; 0 when not known."""
        if self._read_s is None or len(self._steps_s) < REMEMBERED_STEPS // 2:
            return 0.0
        busy_until_s = self._read_s + min(self._steps_s)
        return max(0.0, busy_until_s - 2 * max(self._host_s) - MARGIN_S - now_s)
