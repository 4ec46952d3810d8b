"""Rows of a storage driven by hand: forwards of a real tiny model without an engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from engine.kv.choose import choose_storage
from engine.kv.storage import Storage
from tests.engine.rigs import tiny_model

WINDOW = 16

KINDS = {
    "dense": ("llama", 512),
    "window as a mask": ("gemma3", 4 * WINDOW),
    "ring": ("gemma3", 512),
    "recurrent": ("hybrid", 512),
}
"""A family and a context that give each kind of storage."""


class Rows:
    """A model over a storage of one kind."""

    def __init__(self, kind: str, *, model: Any = None) -> None:
        family, context = KINDS[kind]
        self.model = tiny_model(family) if model is None else model
        choice = choose_storage(self.model, family=family, context_tokens=context)
        assert choice.kind == kind
        self.storage: Storage = choice.storage

    def another(self, kind: str) -> "Rows":
        """The same model over an empty storage."""
        return Rows(kind, model=self.model)

    @contextmanager
    def falling_over(self) -> Iterator[None]:
        """For a while its forwards raise RuntimeError once they are built."""
        model = self.model

        def falls_over(tokens: mx.array, cache: object) -> mx.array:
            model(tokens, cache=cache)
            raise RuntimeError("the device fell over")

        self.model = falls_over
        try:
            yield
        finally:
            self.model = model

    def open(self, *tokens: int) -> int:
        """A row that holds ``tokens``."""
        slot = self.storage.open(len(tokens) + 1)
        if tokens:
            self.feed(slot, *tokens)
        return slot

    def feed(self, slot: int, *tokens: int) -> np.ndarray:
        """float[L, V]: one row's forward, computed."""
        with self.storage.one(slot, len(tokens)) as caches:
            logits = self.model(mx.array([tokens]), cache=caches)
        return np.array(logits[0])

    def step(self, tokens: dict[int, int]) -> dict[int, np.ndarray]:
        """float[V] of each slot in ``tokens``; the other rows ride along."""
        fed = [[tokens.get(slot, 0)] for slot in range(self.storage.rows)]
        with self.storage.all(list(tokens)) as caches:
            logits = self.model(mx.array(fed), cache=caches)
        computed = np.array(logits[:, -1])
        return {slot: computed[slot] for slot in tokens}

    def padded(self, tokens: dict[int, Sequence[int]], *, filler: int = 0) -> dict[int, np.ndarray]:
        """float[L, V] of each slot in ``tokens``, which share a forward; others ride along."""
        width = max(map(len, tokens.values()))
        fed = [[filler] * width for _ in range(self.storage.rows)]
        for slot, its in tokens.items():
            fed[slot][: len(its)] = its
        with self.storage.padded({slot: len(its) for slot, its in tokens.items()}) as caches:
            logits = self.model(mx.array(fed), cache=caches)
        computed = np.array(logits)
        return {slot: computed[slot, : len(its)] for slot, its in tokens.items()}


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal within float32 noise, and the same best token."""
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    np.testing.assert_array_equal(ours.argmax(-1), theirs.argmax(-1))


def prompt(length: int, salt: int = 0) -> Sequence[int]:
    """Some token ids."""
    return [(7 * at + 13 * salt + 5) % 250 for at in range(length)]
