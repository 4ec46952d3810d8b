"""Identifies a loaded model: what a snapshot's KV and tokens are bound to."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten

from engine import guard
from engine.models.contents import FileState, contents_digest
from engine.models.form import dtype_name
from engine.runtime.folders import cache_home

if TYPE_CHECKING:
    from engine.models.load import LoadedModel

SAMPLED_VALUES = 8
"""Values that are looked at in the first and in the middle row of each weight."""


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """What must be equal for one model's KV to be another's."""

    family: str
    layers: int
    vocab_size: int
    dtype: str
    """Of the weights: all types there are, ``float32`` or ``float16+uint32`` (packed)."""
    parameters: int
    """Values of all weights together."""
    eos_ids: tuple[int, ...]
    storage: str
    """Kind of the KV storage; it follows from the family and the context bound."""
    weights: str
    """Digest of every weight's name, shape, type and a few of its values.

    A sample: other training changes it, a copy in another place does not."""
    files: str
    """Digest of every byte of the model's files, and of the libraries' versions
    (`engine.models.contents`)."""

    def differences(self, other: "ModelFingerprint") -> tuple[str, ...]:
        """Each property of ``other`` that is not this one's, as ``name: theirs there, ours here``.

        A digest is named only where nothing else explains it.
        """
        found = {
            one.name: f"{one.name} {getattr(other, one.name)} there, {getattr(self, one.name)} here"
            for one in fields(self)
            if getattr(self, one.name) != getattr(other, one.name)
        }
        for digest in ("files", "weights"):
            if len(found) > 1:
                found.pop(digest, None)
        return tuple(found.values())


def loaded_fingerprint(
    loaded: "LoadedModel", files: tuple[FileState, ...], storage: str
) -> ModelFingerprint:
    """The fingerprint of a model that was loaded when its files were ``files``.

    Raises:
        EvalFailed: the backend threw.
    """
    return model_fingerprint(
        loaded.model,
        family=loaded.facts.family,
        vocab_size=loaded.facts.vocab_size,
        eos_ids=loaded.eos_ids,
        storage=storage,
        files=contents_digest(loaded.facts.path, files, cache_home()),
    )


def model_fingerprint(
    model: Any, *, family: str, vocab_size: int, eos_ids: Iterable[int], storage: str, files: str
) -> ModelFingerprint:
    """The fingerprint of a model in memory; reads a few values of each weight.

    Raises:
        EvalFailed: the backend threw.
    """
    weights: list[tuple[str, mx.array]] = sorted(
        tree_flatten(model.parameters()),  # type: ignore[arg-type]  # a list of pairs
        key=lambda pair: pair[0],
    )
    samples = [sample for _, weight in weights for sample in _samples(weight)]
    guard.evaluate(samples)
    digest = hashlib.sha256()
    for name, weight in weights:
        digest.update(f"{name} {weight.shape} {dtype_name(weight.dtype)}\n".encode())
    for sample in samples:
        digest.update(guard.read_bytes(sample))
    return ModelFingerprint(
        family=family,
        layers=len(model.layers),
        vocab_size=vocab_size,
        dtype="+".join(sorted({dtype_name(weight.dtype) for _, weight in weights})),
        parameters=sum(weight.size for _, weight in weights),
        eos_ids=tuple(sorted(eos_ids)),
        storage=storage,
        weights=digest.hexdigest()[:32],
        files=files,
    )


def _samples(weight: mx.array) -> list[mx.array]:
    """A few values of the first and of the middle row; indexing copies nothing else."""
    first = middle = weight if weight.ndim else weight[None]
    while first.ndim > 1:
        first, middle = first[0], middle[middle.shape[0] // 2]
    return [first[:SAMPLED_VALUES], middle[:SAMPLED_VALUES]]
