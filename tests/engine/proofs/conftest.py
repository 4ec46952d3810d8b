"""A device that fails when it is told to, at the one place where the engine meets it."""

import pytest

from engine import guard
from engine.errors import EvalFailed


class Device:
    """Which of the guarded calls fail: ``evaluate``, ``dispatch``, ``read``.

    MLX's CPU backend has no operation that fails in one and the same place each time, so the fault
    is put where its exceptions arrive.
    """

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.once = False
        """Whether the next failure is the only one."""

    def check(self, call: str) -> None:
        if call in self.fails:
            if self.once:
                self.fails = set()
            raise EvalFailed(f"the device fell over in {call}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In place until the test ends; it works until told otherwise."""
    standing = Device()
    for call in ("evaluate", "dispatch", "read"):
        real = getattr(guard, call)

        def guarded(arrays, real=real, call=call):
            standing.check(call)
            return real(arrays)

        monkeypatch.setattr(guard, call, guarded)
    return standing
