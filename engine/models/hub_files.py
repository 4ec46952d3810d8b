"""Decides which files of a hub repository a model needs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from engine.errors import PullFailed
from engine.models.catalog import gguf_quantization
from engine.models.hub_name import HubName

_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""It becomes a file's name."""
PARTIAL_SUFFIX = ".mlxcel-partial"

# Besides weights: configs, the tokenizer in its several shapes, chat templates.
_SMALL_SUFFIXES = frozenset({".json", ".jinja", ".model", ".tiktoken", ".txt"})
_NOT_NEEDED = frozenset({"training_args.json", "trainer_state.json", "optimizer.json"})

# First what MLX can keep packed, best quality at a modest size first; then what must be unpacked.
_GGUF_ORDER = ("Q4_1", "Q4_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub announces it."""

    name: str
    size_bytes: int
    etag: str
    """The name of its blob: sha256 of a large file, git's sha1 of a small one."""

    @classmethod
    def from_sibling(cls, sibling: Any) -> "HubFile":
        """Return the file that the hub client describes; sizes the hub does not give are 0."""
        large = sibling.lfs
        etag = str(sibling.blob_id if large is None else large.sha256)
        if _ETAG.fullmatch(etag) is None:
            raise PullFailed(
                f"{sibling.rfilename}: the hub gives {etag!r:.80} as its hash, which is none"
            )
        return cls(sibling.rfilename, sibling.size or 0, etag)

    def is_at(self, blobs: Path) -> bool:
        """Whether the whole file is among the blobs."""
        blob = blobs / self.etag
        return blob.is_file() and blob.stat().st_size == self.size_bytes

    def partial(self, blobs: Path) -> Path:
        """Return where an unfinished download of the file lies."""
        return blobs / f"{self.etag}{PARTIAL_SUFFIX}"

    def partial_bytes(self, blobs: Path) -> int:
        """Return how much of the file arrived earlier."""
        try:
            return self.partial(blobs).stat().st_size
        except FileNotFoundError:
            return 0

    def url(self, repository: str, revision: str, endpoint: str | None) -> str:
        """Return where the file is fetched from."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(repository, self.name, revision=revision, endpoint=endpoint)


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The files to fetch, and what was decided about them."""

    files: tuple[HubFile, ...]
    notes: tuple[str, ...] = ()


def choose_files(name: HubName, files: Iterable[HubFile]) -> FileChoice:
    """Choose an mlx-lm folder's files, or one GGUF file where there is no such folder.

    Raises:
        PullFailed: The repository holds no model of a kind that is read here.
    """
    here = [file for file in files if _is_plain(file.name)]
    weights = [file for file in here if file.name.endswith(".safetensors")]
    ggufs = [file for file in here if _is_gguf_model(file.name)]
    if name.file is not None or (ggufs and not weights):
        return _choose_gguf(name, ggufs)
    weights = [file for file in weights if file.name.startswith("model")]
    if not weights and any(file.name.lower().endswith(".gguf") for file in here):
        raise PullFailed(
            f"the GGUF files of {name.repository} are parts of a split model or no model at all; "
            "only whole ones are read here"
        )
    if not weights:
        raise PullFailed(
            f"{name.repository} has no model*.safetensors and no .gguf file: it is no language "
            "model that runs here (look for an MLX conversion: mlx-community/...)"
        )
    small = [
        file
        for file in here
        if PurePosixPath(file.name).suffix in _SMALL_SUFFIXES and file.name not in _NOT_NEEDED
    ]
    if not any(file.name == "config.json" for file in small):
        raise PullFailed(f"{name.repository} has no config.json: it is no model that runs here")
    # The small ones first: a model that cannot run is then found out early.
    return FileChoice((*small, *weights))


def _choose_gguf(name: HubName, ggufs: list[HubFile]) -> FileChoice:
    if not ggufs:
        raise PullFailed(f"{name.repository} has no GGUF file (in one part)")
    offered = ", ".join(file.name for file in ggufs)
    if name.file is not None:
        wanted = name.file.lower()
        found = [
            file
            for file in ggufs
            if wanted in (file.name.lower(), (gguf_quantization(file.name) or "").lower())
        ]
        if len(found) != 1:
            raise PullFailed(f"{name} fits {len(found) or 'none'} of the files there: {offered}")
        return FileChoice((found[0],))
    best = min(ggufs, key=_gguf_rank)
    if len(ggufs) == 1:
        return FileChoice((best,))
    note = f"chose {best.name}; {name.repository}:FILE names another of: {offered}"
    return FileChoice((best,), (note,))


def _gguf_rank(file: HubFile) -> tuple[int, int]:
    quantization = gguf_quantization(file.name)
    known = quantization in _GGUF_ORDER
    return (_GGUF_ORDER.index(quantization or "") if known else len(_GGUF_ORDER), file.size_bytes)


def _is_gguf_model(file_name: str) -> bool:
    lowered = file_name.lower()
    return (
        lowered.endswith(".gguf") and not lowered.startswith("mmproj") and "-of-000" not in lowered
    )


def _is_plain(file_name: str) -> bool:
    """Whether the file lies at the top of the repository; deeper ones belong to other tools."""
    return PurePosixPath(file_name).name == file_name and not file_name.startswith(".")
