"""Removes models from mlxcel's home and Hugging Face's cache, and from nowhere else."""

import shutil
from pathlib import Path

from engine.errors import InvalidParams
from engine.models.catalog import LocalModel, ModelPlaces, conversion_folder, snapshot_models


def removal(model: LocalModel, places: ModelPlaces) -> tuple[Path, ...]:
    """Return what removing the model deletes: folders, and files of a GGUF repository.

    Raises:
        InvalidParams: The model lies elsewhere; what a user put there is theirs to delete.
    """
    outside = InvalidParams(
        "NAME", f"{model.path} lies outside mlxcel's and Hugging Face's caches: delete it yourself"
    )
    if ".." in model.path.parts:
        raise outside
    if model.path.parent == places.models:
        return (model.path,)
    if places.hub_cache not in model.path.parents:
        raise outside
    repository = places.hub_cache / model.path.relative_to(places.hub_cache).parts[0]
    if model.is_gguf_file and not _holds_one_model(model, repository):
        doomed = _gguf_parts(model, repository)
    else:
        doomed = [repository]
    conversion = conversion_folder(model.path, places)
    if conversion.exists():
        doomed.append(conversion)
    return tuple(doomed)


def remove(doomed: tuple[Path, ...]) -> int:
    """Delete what `removal` named and return the bytes freed; links are cut, never followed.

    Raises:
        OSError: Something could not be deleted.
    """
    freed = sum(_bytes_under(path) for path in doomed)
    for path in doomed:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return freed


def _holds_one_model(model: LocalModel, repository: Path) -> bool:
    snapshots = {path for path in (repository / "snapshots").iterdir() if path.is_dir()}
    return all(
        other.path.name == model.path.name
        for snapshot in snapshots
        for other in snapshot_models(snapshot, "")
    )


def _gguf_parts(model: LocalModel, repository: Path) -> list[Path]:
    """Return the file's links in all snapshots and the blobs they lead to in this repository."""
    links = [
        path for path in (repository / "snapshots").glob(f"*/{model.path.name}") if path.exists()
    ]
    blobs = {link.resolve() for link in links}
    here = repository.resolve()
    return [*links, *sorted(blob for blob in blobs if here in blob.parents and blob not in links)]


def _bytes_under(path: Path) -> int:
    """Return the size of the files there; a link counts nothing, its target is not deleted."""
    if path.is_symlink():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(
        file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink()
    )
