"""Whether the backend still works: a run of evaluation failures ends serving.

A shared failure counts once, not once a row; any success starts the count again.
"""

FAILURES_ALLOWED = 8
"""Consecutive failures after which the engine is declared sick."""


class Health:
    """Counts consecutive evaluation failures."""

    def __init__(self) -> None:
        self.failures = 0
        """Evaluation failures since the last success."""

    @property
    def ok(self) -> bool:
        """Whether the backend is still worth a try."""
        return self.failures < FAILURES_ALLOWED

    def succeeded(self) -> None:
        """An evaluation worked."""
        self.failures = 0

    def failed(self) -> None:
        """An evaluation failed, for one row or for all of a step."""
        self.failures += 1
