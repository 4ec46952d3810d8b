"""Decides which folder a model argument means.

An argument is a path, a `.gguf` file, an alias, a hub id, the bare name of a local model, or
nothing. What is on disk always answers before a hub is asked.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError, ModelNotFound
from engine.models.catalog import (
    STARTER,
    LocalModel,
    ModelKind,
    conversion_folder,
    current_snapshot,
    describe,
    gguf_quantization,
    hub_folder,
    local_models,
    snapshot_models,
)
from engine.models.catalog import ModelPlaces as ModelPlaces
from engine.models.checkpoint import CONFIG, model_name
from engine.models.hub_name import HubName, parse_hub_name
from engine.models.progress import ProgressReport, no_report
from engine.models.starter import STARTER_NAME, ensure_starter, starter_folder

_FORBIDDEN = (
    "it is not on this machine, and --offline or HF_HUB_OFFLINE forbids fetching it; without, type"
)
_PULL = "to fetch it, type: mlxcel models pull {}"
_NO_MODEL = f"is no model: a folder with {CONFIG} or a GGUF file is one"
GGUF_MAGIC = b"GGUF"
_LIST = "mlxcel models list shows what is on this machine"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a model argument means."""

    folder: Path
    """An mlx-lm folder, ready to load."""
    name: str
    kind: ModelKind
    notes: tuple[str, ...] = ()
    """What was decided on the way, one sentence each."""


def resolve(
    name: str | None,
    places: ModelPlaces,
    *,
    offline: bool = False,
    allow_pull: bool = False,
    progress: ProgressReport = no_report,
) -> ResolvedModel:
    """Return the folder that `name` means; a GGUF file is converted first, once.

    Raises:
        ModelNotFound: Nothing goes by that name; says what to type next.
        ModelFileError: A GGUF file is broken, or the cache cannot be written.
        UnsupportedModel: A GGUF file is of a kind not read here.
        PullFailed: A download was allowed and did not finish.
    """
    name = _settle(name, places)
    local = _by_path(name)
    if local is None and _means_starter(name):
        if offline and not starter_folder(places.home).is_dir():
            raise ModelNotFound(STARTER, f"{_FORBIDDEN}: mlxcel models pull {STARTER}")
        folder = ensure_starter(places.home, progress=progress)
        return ResolvedModel(folder, STARTER, ModelKind.STARTER)
    hub_name = parse_hub_name(name)
    if local is None and hub_name is not None and allow_pull and not offline:
        local = find_hub_model(hub_name, places)
        if local is None:
            from engine.models.pull import pull

            pull(hub_name, places.hub_cache, progress=progress)
    if local is None:
        local = _find(name, places, offline=offline)
    if not local.is_gguf_file:
        return ResolvedModel(local.path, local.name, local.kind)
    from engine.models.gguf.convert import convert_gguf

    folder = conversion_folder(local.path, places)
    notes = convert_gguf(local.path, folder, progress=progress)
    return ResolvedModel(folder, local.name, ModelKind.GGUF, notes)


def find_local(name: str | None, places: ModelPlaces, *, offline: bool = False) -> LocalModel:
    """Return what `name` means on this machine, sound or broken; fetches and converts nothing.

    Raises:
        ModelNotFound: Nothing here goes by that name; says what to type next.
        ModelFileError: It is the path of something that is no model.
    """
    return _find(_settle(name, places), places, offline=offline)


def _find(name: str, places: ModelPlaces, *, offline: bool) -> LocalModel:
    """Return what `name` means, which is no alias any more."""
    local = _by_path(name)
    if local is not None:
        return local
    if _means_starter(name):
        folder = starter_folder(places.home)
        if not folder.is_dir():
            raise ModelNotFound(STARTER, _PULL.format(STARTER))
        return describe(folder, STARTER, ModelKind.STARTER)
    hub_name = parse_hub_name(name)
    if hub_name is None:
        return _by_bare_name(name, places)
    local = find_hub_model(hub_name, places)
    if local is None:
        raise _not_on_disk(hub_name, places, offline=offline)
    return local


def find_hub_model(hub_name: HubName, places: ModelPlaces) -> LocalModel | None:
    """Return the local copy of a hub model, sound or broken, or None.

    Raises:
        ModelNotFound: The repository is here with several GGUF files and the name fits none or
            more than one of them.
    """
    snapshot = current_snapshot(hub_folder(places.hub_cache, hub_name.owner, hub_name.name))
    if snapshot is None:
        return None
    found = list(snapshot_models(snapshot, hub_name.repository))
    if hub_name.file is not None:
        wanted = hub_name.file.lower()
        found = [model for model in found if _is_named(model, wanted)]
    if len(found) > 1:
        names = ", ".join(model.name for model in found)
        raise ModelNotFound(str(hub_name), f"it holds several GGUF files: {names}")
    return found[0] if found else None


def _is_named(model: LocalModel, wanted: str) -> bool:
    if model.kind is not ModelKind.GGUF:
        return False
    file = model.path.name
    return wanted in (file.lower(), (gguf_quantization(file) or "").lower())


def _settle(name: str | None, places: ModelPlaces) -> str:
    """Return the name that is meant, aliases replaced."""
    if name is None:
        name = places.default or STARTER
    name = places.aliases.get(name, name)
    if "\0" in name or not name.strip():
        raise ModelNotFound(name, _LIST)
    return name


def _means_starter(name: str) -> bool:
    return name.lower() in (STARTER, STARTER_NAME.lower())


def _by_path(name: str) -> LocalModel | None:
    """Return the model at the path `name`; None when it is no path to a model.

    A working folder must not change what `starter` means, nor hide a model behind a file that
    happens to have its name.
    """
    if name.lower() == STARTER:
        return None
    try:
        path = Path(name).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError):  # such a name cannot be a path here
        return None
    spelt_as_path = name.startswith((".", "~")) or name.endswith("/") or path.is_absolute()
    is_path = spelt_as_path or len(path.parts) > 1
    if is_folder and (path / CONFIG).is_file():
        return describe(path, model_name(path), ModelKind.FOLDER)
    if is_folder and spelt_as_path:
        return _gguf_file(_only_gguf(path))
    if is_file and (path.suffix.lower() == ".gguf" or (is_path and _begins_as_gguf(path))):
        return _gguf_file(path)
    if is_file and is_path:
        raise ModelFileError(path, _NO_MODEL)
    if spelt_as_path or (path.suffix.lower() == ".gguf" and parse_hub_name(name) is None):
        raise ModelNotFound(name, "there is no such file or folder")
    return None


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file without the ending holds GGUF, as Ollama's blobs do."""
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long a name, for example
        return False


def _only_gguf(folder: Path) -> Path:
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    named = f"; name one of its files: {', '.join(file.name for file in ggufs)}"
    raise ModelFileError(folder, f"no {CONFIG} in this folder{named if ggufs else ''}")


def _gguf_file(file: Path) -> LocalModel:
    return LocalModel(
        name=file.stem,
        kind=ModelKind.GGUF,
        path=file,
        size_bytes=file.stat().st_size,
        quantization=gguf_quantization(file.name),
    )


def _by_bare_name(name: str, places: ModelPlaces) -> LocalModel:
    """Return the one local model whose name, or name without owner, is `name`.

    Raises:
        ModelNotFound: There is none, or more than one.
        ModelFileError: There is none, but a file of that name that is no model.
    """
    models = local_models(places)
    wanted = name.lower()
    found = [model for model in models if wanted in _spellings(model)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(sorted(model.name for model in found))
        raise ModelNotFound(name, f"it fits several; type one of: {names}")
    if _is_file(Path(name)):
        raise ModelFileError(Path(name), _NO_MODEL)
    known = {spelling: model.name for model in models for spelling in _spellings(model)}
    known |= {alias.lower(): alias for alias in places.aliases}
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.6)
    if close:
        names = " or ".join(dict.fromkeys(known[spelling] for spelling in close))
        raise ModelNotFound(name, f"did you mean {names}? {_LIST}")
    if parse_hub_name(f"mlx-community/{name}") is None:
        raise ModelNotFound(name, _LIST)
    raise ModelNotFound(name, _PULL.format(f"mlx-community/{name}") + f"; {_LIST}")


def _spellings(model: LocalModel) -> set[str]:
    full = model.name.lower()
    base = full.rpartition("/")[2]
    spellings = {full, base, base.removesuffix(".gguf"), base.partition(":")[0]}
    if model.kind is ModelKind.GGUF and not model.is_gguf_file:  # converted: its name ends in a key
        spellings.add(base.rpartition("-")[0])
    return spellings


def _not_on_disk(hub_name: HubName, places: ModelPlaces, *, offline: bool) -> ModelNotFound:
    known = [model.name for model in local_models(places)]
    close = difflib.get_close_matches(str(hub_name), known, n=1, cutoff=0.8)
    guess = f"did you mean {close[0]}, which is here? Else, " if close else ""
    if offline:
        return ModelNotFound(
            str(hub_name),
            f"{guess}{_FORBIDDEN}: mlxcel models pull {hub_name}",
        )
    return ModelNotFound(str(hub_name), guess + _PULL.format(hub_name))
