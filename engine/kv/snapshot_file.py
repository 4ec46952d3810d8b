"""Writes snapshots to files and reads them back, whole and unaltered or not at all.

A file is safetensors: the arrays ``layer.index``, and in its metadata a format, a version, the
row's state as JSON and a checksum. SHA-256 runs over the state and every array's name, shape and
bytes, and is compared before MLX is given the file. A file appears under its name only when it is
complete.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine import guard
from engine.errors import EngineError, SnapshotCorrupt, SnapshotError
from engine.kv.layer import RowArrays
from engine.kv.plain import PLAIN_ERRORS, from_plain, to_plain
from engine.kv.storage import RowSnapshot
from engine.kv.transfer import CachedPrefix, SequenceSnapshot
from engine.lookup.auto_governor import AutoGovernor
from engine.lookup.governor import FixedGovernor, GatedGovernor, Governor, GradedGovernor
from engine.models.fingerprint import ModelFingerprint
from engine.models.form import dtype_name
from engine.params import SequenceParams
from engine.sampling.row_sampler import SamplerSnapshot

FORMAT = "mlxcel-snapshot"
VERSION = 2
"""Raised whenever a file of the version before would be read wrongly."""

HEADER_LIMIT = 100_000_000
"""Longest safetensors header that is read, as in the format's own reader."""

_GOVERNORS: tuple[type[Governor], ...] = (
    FixedGovernor,
    GradedGovernor,
    GatedGovernor,
    AutoGovernor,
)


@dataclass(frozen=True, slots=True)
class _Kv:
    """A RowSnapshot without its arrays."""

    tokens: int
    overshoot: int
    is_whole: bool
    layers: tuple[tuple[str, ...], ...]
    """Types of each layer's arrays."""


@dataclass(frozen=True, slots=True)
class _RowState:
    """A SequenceSnapshot without its model and KV."""

    params: SequenceParams
    written: tuple[int, ...]
    sampler: SamplerSnapshot
    had_hooks: bool


def save_snapshot(snapshot: SequenceSnapshot | CachedPrefix, path: Path) -> None:
    """Write a snapshot; a file of that name is replaced in one step.

    Raises:
        SnapshotError: the arrays could not be written (a full disk).
        OSError: the place cannot be written.
        EvalFailed: the backend threw.
    """
    arrays = {
        f"{layer}.{index}": array
        for layer, held in enumerate(snapshot.kv.layers)
        for index, array in enumerate(held)
    }
    state = json.dumps(_state(snapshot), sort_keys=True)
    digest = _Digest(state)
    for name in sorted(arrays):
        digest.add(name, tuple(arrays[name].shape), guard.read_bytes(arrays[name]))
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "state": state,
        "checksum": digest.hex(),
    }
    with _put_in_place(path) as temporary:
        try:
            mx.save_safetensors(str(temporary), arrays, metadata)
        except guard.BACKEND_ERRORS as error:
            raise SnapshotError(f"{path} could not be written: {error}") from error


def load_snapshot(path: Path) -> SequenceSnapshot:
    """The row that `save_snapshot` wrote.

    Raises:
        SnapshotCorrupt: the file is no snapshot of a row, is damaged, or of another version.
        OSError: there is no such file, or it cannot be read.
    """
    state, kv = _read(path)
    with _document(path):
        row = from_plain(_RowState, state["row"])
        return SequenceSnapshot(
            model=from_plain(ModelFingerprint, state["model"]),
            params=row.params,
            written=row.written,
            kv=kv,
            sampler=row.sampler,
            governor=_governor(state["governor"]),
            had_hooks=row.had_hooks,
        )


def load_prefix(path: Path) -> CachedPrefix:
    """The KV that `save_snapshot` wrote, of a prefix or of a whole row.

    Raises:
        SnapshotCorrupt: the file is no snapshot, is damaged, or of another version.
        OSError: there is no such file, or it cannot be read.
    """
    state, kv = _read(path)
    with _document(path):
        ids = from_plain(tuple[int, ...], state["ids"])
        return CachedPrefix(from_plain(ModelFingerprint, state["model"]), ids[: kv.tokens], kv)


def _state(snapshot: SequenceSnapshot | CachedPrefix) -> dict[str, Any]:
    kv = snapshot.kv
    state: dict[str, Any] = {
        "model": to_plain(snapshot.model),
        "ids": list(snapshot.ids[: kv.tokens]),
        "kv": to_plain(_Kv(kv.tokens, kv.overshoot, kv.is_whole, _dtypes(kv.layers))),
        "row": None,
        "governor": None,
    }
    if isinstance(snapshot, SequenceSnapshot):
        row = _RowState(snapshot.params, snapshot.written, snapshot.sampler, snapshot.had_hooks)
        state["row"] = to_plain(row)
        if snapshot.governor is not None:
            name = type(snapshot.governor).__name__
            state["governor"] = [name, to_plain(snapshot.governor)]
    return state


def _dtypes(layers: tuple[RowArrays, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(dtype_name(array.dtype) for array in held) for held in layers)


def _governor(document: Any) -> Governor | None:
    if document is None:
        return None
    name, content = document
    kinds = {kind.__name__: kind for kind in _GOVERNORS}
    governor: Governor = from_plain(kinds[name], content)
    return governor


def _read(path: Path) -> tuple[dict[str, Any], RowSnapshot]:
    state = _verified_state(path)
    try:
        arrays = mx.load(str(path), format="safetensors")
    except guard.BACKEND_ERRORS as error:
        raise SnapshotCorrupt(path, f"cannot be read: {error}") from error
    assert isinstance(arrays, dict)
    guard.evaluate(list(arrays.values()))
    with _document(path):
        kv = from_plain(_Kv, state["kv"])
        layers = tuple(
            tuple(arrays[f"{layer}.{index}"] for index in range(len(dtypes)))
            for layer, dtypes in enumerate(kv.layers)
        )
    if kv.layers != _dtypes(layers):
        raise SnapshotCorrupt(path, "is damaged: its arrays are of other types")
    return state, RowSnapshot(kv.tokens, layers, kv.overshoot, kv.is_whole)


def _verified_state(path: Path) -> dict[str, Any]:
    """The state of a file whose every byte is what was written; MLX has not seen it yet.

    MLX reads lazily and on threads of its own, where a short file would end the process.
    """
    with path.open("rb") as file, _document(path):
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, HEADER_LIMIT):
            raise SnapshotCorrupt(path, "is no snapshot: it is not a safetensors file")
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        _check_format(path, metadata)
        digest = _Digest(metadata["state"])
        data = 8 + length
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for name in sorted(header):
                begin, end = header[name]["data_offsets"]
                if not 0 <= begin <= end <= size - data:
                    raise SnapshotCorrupt(path, f"is cut off: the array {name} is not all there")
                shape = tuple(header[name]["shape"])
                digest.add(name, shape, content[data + begin : data + end])
        if digest.hex() != metadata["checksum"]:
            raise SnapshotCorrupt(path, "is damaged: its checksum is another")
        state: dict[str, Any] = json.loads(metadata["state"])
        return state


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise SnapshotCorrupt(path, "is no snapshot")
    version = metadata.get("version")
    if version != str(VERSION):
        raise SnapshotCorrupt(path, f"is of version {version}; this program reads {VERSION}")


@contextmanager
def _document(path: Path) -> Iterator[None]:
    """Turn what a malformed document raises into an error that names the file."""
    try:
        yield
    except (SnapshotCorrupt, OSError):
        raise
    except (*PLAIN_ERRORS, EngineError) as error:
        raise SnapshotCorrupt(path, f"is malformed: {type(error).__name__}: {error}") from error


class _Digest:
    """SHA-256 over a state and arrays; every part is preceded by its length."""

    def __init__(self, state: str) -> None:
        self._sha = hashlib.sha256()
        self._part(state.encode())

    def add(self, name: str, shape: tuple[int, ...], content: bytes) -> None:
        """Take one array in."""
        self._part(f"{name} {shape}".encode())
        self._part(content)

    def hex(self) -> str:
        """The digest so far."""
        return self._sha.hexdigest()

    def _part(self, content: bytes) -> None:
        self._sha.update(len(content).to_bytes(8, "little"))
        self._sha.update(content)


@contextmanager
def _put_in_place(path: Path) -> Iterator[Path]:
    """A name next to ``path`` to write to; it becomes ``path`` once all of it is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.safetensors")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
