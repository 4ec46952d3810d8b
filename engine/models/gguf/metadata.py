"""The key-value part of a GGUF file, asked for by key and type.

A missing key or one of another type is a ModelFileError that names the key.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelFileError

Scalars = NDArray[np.generic]
"""An array value of numbers or booleans: one dimension, the file's own number type."""

Value = bool | int | float | str | tuple[str, ...] | Scalars


class GgufMetadata:
    """The values of one file, by key."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, key: str, default: str | None = None) -> str:
        """The string under ``key``."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """The whole number under ``key``, never negative."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The finite number under ``key``."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise self._wrong(key, "a finite number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """The boolean under ``key``."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "a boolean")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The array of strings under ``key``."""
        value = self._values.get(key)
        if not isinstance(value, tuple):
            raise self._wrong(key, "an array of strings")
        return value

    def numbers(self, key: str) -> Scalars:
        """The array of numbers under ``key``."""
        value = self._values.get(key)
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, "an array of numbers")
        return value

    def counts(self, key: str) -> list[int]:
        """The array of whole numbers, none negative, under ``key``."""
        numbers = self.numbers(key)
        counts: list[int] = numbers.tolist()
        if not np.issubdtype(numbers.dtype, np.integer) or min(counts, default=0) < 0:
            raise self._wrong(key, "an array of whole numbers")
        return counts

    def is_array(self, key: str) -> bool:
        """Whether ``key`` holds an array."""
        return isinstance(self._values.get(key), tuple | np.ndarray)

    def _wrong(self, key: str, wanted: str) -> ModelFileError:
        problem = f"is not {wanted}" if key in self._values else "is missing"
        return ModelFileError(self.path, f"metadata key {key!r} {problem}")
