"""Hooks and texts of rows that break when they are told to."""

from typing import Any

import numpy as np

from engine.finish import FinishCause


class Hooks:
    """Does nothing until it is told to break."""

    def __init__(self, breaks_at: int | None = None, *, in_finish: bool = False) -> None:
        self.breaks_at, self.in_finish = breaks_at, in_finish

    def mask(self, ids: Any) -> np.ndarray | None:
        if not self.in_finish and self.breaks_at == len(ids):
            raise ValueError("no mask for this")
        return None

    def finish(self, ids: Any) -> FinishCause | None:
        if self.in_finish and self.breaks_at == len(ids):
            raise LookupError("no end to this")
        return None


class Text:
    """A row's text that breaks at its n-th token."""

    stop_match = None

    def __init__(self, breaks_at: int) -> None:
        self.left = breaks_at

    def push(self, token: int) -> bool:
        self.left -= 1
        if not self.left:
            raise RuntimeError("undecodable")
        return False

    def take(self) -> str:
        return ""

    def flush(self) -> None:
        """Nothing is held back."""


class StopAfter(Text):
    """Finds its stop string at the n-th token."""

    def push(self, token: int) -> bool:
        self.left -= 1
        return not self.left
