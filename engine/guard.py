"""The one place where the engine waits for the device and reads what it computed.

A backend can throw at any such point. Here that becomes `EvalFailed`, so that it ends rows and
never the thread; `tests/rules` keeps every other module of the engine free of device reads.
`Health` counts them: a run of evaluation failures ends serving.
"""

from collections.abc import Sequence

import mlx.core as mx

from engine.errors import EvalFailed

BACKEND_ERRORS = (RuntimeError, ValueError, IndexError, TypeError, MemoryError, OSError)
"""What MLX's backends and mlx-lm's families raise; anything else is a bug of ours."""


def read_ints(array: mx.array) -> list[int]:
    """The ints of a one-dimensional array; waits for the device.

    Raises:
        EvalFailed: the backend threw.
    """
    values: list[int] = read(array)
    return values


def read(array: mx.array) -> list:  # type: ignore[type-arg]  # nested as deep as the array
    """The values of an array as nested lists; waits for the device.

    Raises:
        EvalFailed: the backend threw.
    """
    try:
        return array.tolist()  # type: ignore[return-value]  # never a scalar here
    except BACKEND_ERRORS as error:
        raise EvalFailed(str(error)) from error


def read_bytes(array: mx.array) -> bytes:
    """The bytes of an array of any type, row by row; waits for the device.

    Raises:
        EvalFailed: the backend threw.
    """
    try:
        return bytes(memoryview(array.reshape(-1).view(mx.uint8)))  # type: ignore[arg-type]
    except BACKEND_ERRORS as error:
        raise EvalFailed(str(error)) from error


def evaluate(arrays: Sequence[mx.array]) -> None:
    """Compute ``arrays`` and wait.

    Raises:
        EvalFailed: the backend threw.
    """
    try:
        mx.eval(*arrays)
    except BACKEND_ERRORS as error:
        raise EvalFailed(str(error)) from error


def dispatch(arrays: Sequence[mx.array]) -> None:
    """Start computing ``arrays`` without waiting.

    Raises:
        EvalFailed: the backend threw.
    """
    try:
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]
    except BACKEND_ERRORS as error:
        raise EvalFailed(str(error)) from error


FAILURES_ALLOWED = 8
"""Consecutive failures after which the engine is declared sick."""


class Health:
    """Counts consecutive evaluation failures: one a shared forward."""

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
