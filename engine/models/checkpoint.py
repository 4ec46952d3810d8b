"""Reads a model folder's JSON files and the headers of its safetensors shards, without MLX.

Headers are checked against the files' real sizes before MLX sees them, so that a truncated or
corrupt shard is an error that names the tensor and never a wild read.
"""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError, UnsupportedModel

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")

# Of the safetensors format; a header above this is refused by every reader.
_MAX_HEADER_BYTES = 100_000_000
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)

# transformers writes non-finite numbers as {"__float__": "Infinity"} to keep config.json valid.
_TAGGED_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json`.

    Raises:
        ModelFileError: The file is missing or is not a JSON object.
        UnsupportedModel: The model wants its own Python code to be run.
    """
    config = read_json(folder / CONFIG)
    if config is None:
        raise ModelFileError(folder, f"no {CONFIG} in this folder")
    if config.get("model_file") is not None:
        raise UnsupportedModel(
            f"{folder}: config.json asks to run the model's own code "
            f"({config['model_file']!r}); mlxcel never does that"
        )
    untagged: dict[str, Any] = _untag(config)
    return untagged


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, or None if there is no such file.

    Raises:
        ModelFileError: The file is not a JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError, RecursionError) as error:
        raise ModelFileError(path, f"cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileError(path, "does not hold a JSON object")
    return found


def model_name(folder: Path) -> str:
    """Return what to call the model in `folder`: `owner/name` in Hugging Face's cache."""
    if folder.parent.name == "snapshots":
        repository = folder.parent.parent.name
        if repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/")
    return folder.resolve().name


def context_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the model's own context, or None where its config says nothing."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            for key in _CONTEXT_KEYS:
                value = part.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the folder's weight shards, in order.

    A whole ``model.safetensors`` stands for shards that an index names and that are not here.

    Raises:
        ModelFileError: Shards that the index names are missing, or there are no weights.
    """
    files = _indexed_files(folder)
    if files is None:
        return _unindexed_files(folder)
    missing = _missing(files)
    if missing and has_stale_index(folder):
        return _unindexed_files(folder)
    if missing:
        names = ", ".join(file.name for file in missing)
        raise ModelFileError(folder, f"shards of the model are missing: {names}")
    return files


def has_stale_index(folder: Path) -> bool:
    """Whether the index is of other weights than the ``model.safetensors`` in the same folder.

    Raises:
        ModelFileError: The index cannot be used.
    """
    files, whole = _indexed_files(folder), folder / WHOLE
    return files is not None and whole not in files and bool(_missing(files)) and whole.is_file()


def _indexed_files(folder: Path) -> tuple[Path, ...] | None:
    """The shards that the index names; None where there is no index."""
    index = read_json(folder / INDEX)
    if index is None:
        return None
    mapping = index.get("weight_map")
    if not isinstance(mapping, Mapping) or not mapping:
        raise ModelFileError(folder / INDEX, "has no weight_map")
    names = sorted({str(name) for name in mapping.values()})
    for name in names:
        if Path(name).name != name:
            raise ModelFileError(folder / INDEX, f"names a file outside the folder: {name!r}")
    return tuple(folder / name for name in names)


def _unindexed_files(folder: Path) -> tuple[Path, ...]:
    files = tuple(sorted(folder.glob("model*.safetensors")))
    if folder / WHOLE in files:  # a shard that stayed from an earlier download is none of it
        files = tuple(file for file in files if _SHARD.search(file.name) is None)
    if not files:
        raise ModelFileError(folder, "no model*.safetensors in this folder")
    missing = _missing(files)
    if missing:
        raise ModelFileError(missing[0], "this file of the model is missing")
    return files


def _missing(files: tuple[Path, ...]) -> list[Path]:
    # A link to a blob that is gone is no file either.
    return [file for file in files if not file.is_file()]


def read_header(file: Path) -> dict[str, Any]:
    """Return a safetensors header (tensor name to dtype, shape, data_offsets), checked.

    Raises:
        ModelFileError: The header is unreadable, or a tensor does not lie in the file.
    """
    file_bytes = file.stat().st_size
    with file.open("rb") as handle:
        head = handle.read(8)
        if len(head) < 8:
            raise ModelFileError(file, "truncated: not even a safetensors header")
        (header_bytes,) = struct.unpack("<Q", head)
        if header_bytes > _MAX_HEADER_BYTES:
            raise ModelFileError(file, "not a safetensors file")
        if 8 + header_bytes > file_bytes:
            raise ModelFileError(file, "truncated: the safetensors header is cut short")
        try:
            header = json.loads(handle.read(header_bytes))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(file, f"corrupt safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise ModelFileError(file, "corrupt safetensors header")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        problem = _tensor_problem(entry, file_bytes - 8 - header_bytes)
        if problem is not None:
            raise ModelFileError(file, f"tensor {name!r} {problem}")
    return header


def _tensor_problem(entry: Any, data_bytes: int) -> str | None:
    """Say what is wrong with one header entry, or None."""
    try:
        item_bytes = _ITEM_BYTES[entry["dtype"]]
        start, stop = entry["data_offsets"]
        expected = item_bytes
        for length in entry["shape"]:
            expected *= length
        whole = 0 <= start <= stop and all(length >= 0 for length in entry["shape"])
    except (KeyError, TypeError, ValueError):
        return f"has an unreadable header entry ({entry!r:.80})"
    if not whole or stop - start != expected:
        return "has a size that does not match its shape"
    if stop > data_bytes:
        return f"is cut short: the file ends {stop - data_bytes} bytes before it does"
    return None


def _untag(value: Any) -> Any:
    match value:
        case {"__float__": str(tag)} if tag in _TAGGED_FLOATS and len(value) == 1:
            return _TAGGED_FLOATS[tag]
        case dict():
            return {key: _untag(inner) for key, inner in value.items()}
        case list():
            return [_untag(inner) for inner in value]
        case _:
            return value
