"""Fills mlxcel's home and a Hugging Face cache with folders that look like models."""

from pathlib import Path
from typing import Any

from engine.models.catalog import ModelPlaces, hub_folder
from tests.engine.models.tiny import write_json

COMMIT = "c" * 40


def fill_folder(folder: Path, **config: Any) -> Path:
    """Make an mlx-lm folder whose weights nobody will read."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"model_type": "llama", **config})
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def add_hub_model(places: ModelPlaces, name: str, *, commit: str = COMMIT, **config: Any) -> Path:
    """Put a repository into the hub's cache as the hub's client does; returns the snapshot."""
    snapshot = _snapshot(places, name, commit)
    write_json(snapshot / "config.json", {"model_type": "llama", **config})
    _add_blob(snapshot, "model.safetensors")
    return snapshot


def add_hub_gguf(places: ModelPlaces, name: str, *files: str, content: bytes = b"GGUF") -> Path:
    """Put a repository of GGUF files into the hub's cache; returns the snapshot."""
    snapshot = _snapshot(places, name, COMMIT)
    for file in files:
        _add_blob(snapshot, file, content)
    return snapshot


def _snapshot(places: ModelPlaces, name: str, commit: str) -> Path:
    repository = hub_folder(places.hub_cache, *name.split("/"))
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repository / folder).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    return repository / "snapshots" / commit


def _add_blob(snapshot: Path, file: str, content: bytes = b"weights") -> None:
    blob = snapshot.parents[1] / "blobs" / f"blob-of-{file}"
    blob.write_bytes(content)
    (snapshot / file).symlink_to(Path("..") / ".." / "blobs" / blob.name)
