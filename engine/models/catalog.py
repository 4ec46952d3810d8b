"""Knows which models are on disk: in mlxcel's home and in Hugging Face's cache.

Reads folder layouts and small JSON files only: no MLX, no transformers, no hub, so that a shell's
TAB can ask it. A broken model is listed with what is wrong with it.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.errors import ModelError, ModelFileError
from engine.models.checkpoint import (
    CONFIG,
    context_tokens,
    read_config,
    weight_files,
)
from engine.models.mlxlm import knows_family
from engine.models.starter import starter_folder

STARTER = "starter"
"""The name that always means the starter model."""

_REPOSITORY = "models--"
_KEY_DIGITS = 8
_STEM_BYTES = 200
"""Of a GGUF file's name in that of its conversion: with its key and the marks of one that is being
made it has to stay below a file system's 255."""

_UNKNOWN_FAMILY = "the installed mlx-lm cannot run the model type"
_GGUF_QUANT = re.compile(r"(?:^|[-._])((?:I?Q\d\w*|BF16|F16|F32))(?=[-.]|$)", re.IGNORECASE)
_GGUF_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


class ModelKind(StrEnum):
    """Where a model came from."""

    STARTER = "starter"
    HUB = "hub"
    GGUF = "gguf"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class ModelPlaces:
    """Where models are looked for, and the names the user gave them."""

    home: Path
    """mlxcel's own folder; models it made are under `models/`."""
    hub_cache: Path
    """Hugging Face's cache, shared with other tools."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Short names and what they stand for."""
    default: str | None = None
    """What no name means; None is the starter."""

    @property
    def models(self) -> Path:
        """Where converted models are kept."""
        return self.home / "models"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One model on disk."""

    name: str
    """What to type to use it."""
    kind: ModelKind
    path: Path
    """A folder, or a `.gguf` file."""
    size_bytes: int
    family: str | None = None
    quantization: str | None = None
    context_tokens: int | None = None
    problem: str | None = None
    """What is wrong with it; None for a sound one."""

    @property
    def is_gguf_file(self) -> bool:
        """Whether the path is a GGUF file, to be converted before it is loaded."""
        return self.kind is ModelKind.GGUF and self.path.is_file()


def local_models(places: ModelPlaces) -> tuple[LocalModel, ...]:
    """Return every model on disk, by kind and name; broken ones too."""
    hub = list(_hub_models(places.hub_cache))
    # What a file in the hub's cache was converted to is that model again, not another one.
    converted = {conversion_folder(model.path, places) for model in hub if model.is_gguf_file}
    home = [model for model in _home_models(places) if model.path not in converted]
    found = [*home, *hub]
    order = list(ModelKind)
    return tuple(sorted(found, key=lambda model: (order.index(model.kind), model.name.lower())))


def describe(folder: Path, name: str, kind: ModelKind) -> LocalModel:
    """Return what the files of an mlx-lm folder say, without reading weights."""
    size_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    try:
        config = read_config(folder)
        weight_files(folder)
        known = knows_family(config)
        problem = None if known else f"{_UNKNOWN_FAMILY} {config.get('model_type')!r}"
    except ModelFileError as error:
        return LocalModel(name, kind, folder, size_bytes, problem=error.problem)
    except (ModelError, OSError) as error:
        return LocalModel(name, kind, folder, size_bytes, problem=str(error))
    return LocalModel(
        name=name,
        kind=kind,
        path=folder,
        size_bytes=size_bytes,
        family=str(config.get("model_type")),
        quantization=quantization_of(config),
        context_tokens=context_tokens(config),
        problem=problem,
    )


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """Return how config.json says weights are packed: ``"4-bit group 64"``."""
    packing = config.get("quantization")
    if not isinstance(packing, Mapping) or not isinstance(packing.get("bits"), int):
        foreign = config.get("quantization_config")
        method = foreign.get("quant_method") if isinstance(foreign, Mapping) else None
        return None if method is None else str(method)
    mode = packing.get("mode", "affine")
    named = "" if mode == "affine" else f" {mode}"
    mixed = " (mixed)" if any(isinstance(value, Mapping) for value in packing.values()) else ""
    return f"{packing['bits']}-bit{named} group {packing.get('group_size')}{mixed}"


def gguf_quantization(file_name: str) -> str | None:
    """Return the quantization in a GGUF file's name, in upper case: ``"Q4_K_M"``."""
    found = _GGUF_QUANT.findall(file_name)
    return found[-1].upper() if found else None


def conversion_folder(file: Path, places: ModelPlaces) -> Path:
    """Return the folder in mlxcel's home that a GGUF file is converted to.

    The key is of the path as it was given: in the hub's cache that is a link to a nameless blob.
    """
    key = hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:_KEY_DIGITS]
    stem = file.stem.encode(errors="surrogateescape")[:_STEM_BYTES].decode(errors="ignore")
    return places.models / f"{stem}-{key}"


def hub_folder(hub_cache: Path, owner: str, name: str) -> Path:
    """Return where Hugging Face's cache keeps a repository."""
    return hub_cache / f"{_REPOSITORY}{owner}--{name}"


def current_snapshot(repository: Path) -> Path | None:
    """Return the snapshot `main` points at, else the newest one, or None."""
    snapshots = repository / "snapshots"
    try:
        main = (repository / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        main = ""
    if main and Path(main).name == main and (snapshots / main).is_dir():
        return snapshots / main
    found = [entry for entry in _entries(snapshots) if entry.is_dir()]
    return max(found, key=lambda entry: entry.stat().st_mtime, default=None)


def snapshot_models(snapshot: Path, name: str) -> Iterator[LocalModel]:
    """Yield what one snapshot holds: an mlx-lm folder, or one model per GGUF file."""
    ggufs = sorted(file for file in snapshot.glob("*.gguf") if _is_model_file(file))
    if not ggufs:
        if (snapshot / CONFIG).exists():
            yield describe(snapshot, name, ModelKind.HUB)
        return
    for file in ggufs:
        yield LocalModel(
            name=f"{name}:{file.name}",
            kind=ModelKind.GGUF,
            path=file,
            size_bytes=file.stat().st_size,
            quantization=gguf_quantization(file.name),
        )


def _home_models(places: ModelPlaces) -> Iterator[LocalModel]:
    for folder in _entries(places.models):
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        if folder == starter_folder(places.home):
            yield describe(folder, STARTER, ModelKind.STARTER)
        else:
            yield describe(folder, folder.name, ModelKind.GGUF)


def _hub_models(hub_cache: Path) -> Iterator[LocalModel]:
    for repository in _entries(hub_cache):
        owner, parted, name = repository.name.removeprefix(_REPOSITORY).partition("--")
        if not repository.name.startswith(_REPOSITORY) or not parted:
            continue
        snapshot = current_snapshot(repository)
        if snapshot is None:
            continue
        for model in snapshot_models(snapshot, f"{owner}/{name}"):
            # The cache also holds other tools' models of other kinds: those are no concern of ours.
            if model.problem is None or not model.problem.startswith(_UNKNOWN_FAMILY):
                yield model


def _is_model_file(file: Path) -> bool:
    """Whether a GGUF holds a model of its own: no vision projector, no later part of a split."""
    is_part = _GGUF_LATER_PART.search(file.name) is not None
    return file.is_file() and not file.name.lower().startswith("mmproj") and not is_part


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # not there, or not ours to read
        return []
