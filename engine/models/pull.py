"""Brings a model from the hub into Hugging Face's cache, resuming what an earlier try left.

The hub's client names files, tokens, proxies and the cache's layout. Files themselves are fetched
here, because the client (2.4) drops a partial file when it fails: ours stays next to its place as
`<etag>.mlxcel-partial`, is continued, checked by size and hash, and renamed to the blob the client
then finds and links.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm

from engine.errors import PullFailed
from engine.models.catalog import hub_folder
from engine.models.hub_files import HubFile, choose_files
from engine.models.hub_name import HubName
from engine.models.partial_file import fetch
from engine.models.progress import Progress, ProgressReport, no_report

_INFO_TIMEOUT_S = 20
_SPARE_BYTES = 64 * 2**20  # of the disk, to be left when everything is there


@dataclass(frozen=True, slots=True)
class PulledModel:
    """What a pull brought."""

    name: HubName
    folder: Path
    """The snapshot in Hugging Face's cache."""
    size_bytes: int
    fetched_bytes: int
    """Of these, what was not on disk before."""
    notes: tuple[str, ...]


def pull(
    name: HubName,
    hub_cache: Path,
    *,
    endpoint: str | None = None,
    progress: ProgressReport = no_report,
) -> PulledModel:
    """Fetch what is needed of the repository; files that are here already are not fetched again.

    An exception out of `progress` (a Ctrl-C) ends the pull; the next one resumes there.

    Args:
        name: the repository, and for GGUF perhaps the file or the quantization.
        hub_cache: Hugging Face's cache folder.
        endpoint: the hub's address; None is the hub client's own choice (HF_ENDPOINT).
        progress: called with the bytes of all files together.

    Raises:
        PullFailed: with what to do about it. What arrived is kept and resumed.
    """
    with _failures(name, hub_cache):
        info: Any = HfApi(endpoint=endpoint).model_info(
            name.repository, files_metadata=True, timeout=_INFO_TIMEOUT_S
        )
        choice = choose_files(name, [HubFile.from_sibling(one) for one in info.siblings or ()])
        blobs = hub_folder(hub_cache, name.owner, name.name) / "blobs"
        missing = [file for file in choice.files if not file.is_at(blobs)]
        blobs.mkdir(parents=True, exist_ok=True)
        _check_disk(missing, blobs)
        _fetch_all(name, missing, blobs, info.sha, endpoint, progress)
        folder = snapshot_download(
            name.repository,
            cache_dir=hub_cache,
            endpoint=endpoint,
            allow_patterns=[file.name for file in choice.files],
            tqdm_class=_NoBar,
        )
        _check_sizes(Path(folder), choice.files)
    return PulledModel(
        name=name,
        folder=Path(folder),
        size_bytes=sum(file.size_bytes for file in choice.files),
        fetched_bytes=sum(file.size_bytes for file in missing),
        notes=choice.notes,
    )


class _NoBar(tqdm):
    """The hub client's progress bar, switched off: what is shown is the caller's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["disable"] = True
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]


def _fetch_all(
    name: HubName,
    files: list[HubFile],
    blobs: Path,
    revision: str,
    endpoint: str | None,
    progress: ProgressReport,
) -> None:
    total = sum(file.size_bytes for file in files)
    before = 0
    for file in files:
        base = before

        def report(done: int, base: int = base, file: HubFile = file) -> None:
            progress(Progress(f"downloading {file.name}", base + done, total))

        url = file.url(name.repository, revision, endpoint)
        fetch(url, file, blobs, report)
        before += file.size_bytes


def _check_disk(files: list[HubFile], blobs: Path) -> None:
    """Refuse before the first byte what cannot end well."""
    needed = sum(max(0, file.size_bytes - file.partial_bytes(blobs)) for file in files)
    free = shutil.disk_usage(blobs).free
    if needed + _SPARE_BYTES > free:
        raise PullFailed(
            f"{needed / 2**30:.1f} GiB are to be downloaded, but {blobs} has only "
            f"{free / 2**30:.1f} GiB free; make room, or set HF_HOME to a larger disk"
        )


def _check_sizes(folder: Path, files: tuple[HubFile, ...]) -> None:
    for file in files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise PullFailed(
                f"{path} is not what the hub announced ({file.size_bytes} bytes); pull again"
            )


@contextmanager
def _failures(name: HubName, hub_cache: Path) -> Iterator[None]:
    """Turn what the hub, the network or the disk did into a PullFailed that says what to do."""
    again = f"what arrived is kept; mlxcel models pull {name} resumes there"
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise PullFailed(
            f"HF_HUB_OFFLINE forbids fetching {name}: unset it and try again"
        ) from error
    except GatedRepoError as error:
        raise PullFailed(
            f"{name.repository} is gated: accept its terms at https://huggingface.co/"
            f"{name.repository}, then set HF_TOKEN (or run: hf auth login) and pull again"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise PullFailed(
            f"the hub has no model {name.repository}, or it is private: check the spelling, "
            "or set HF_TOKEN (or run: hf auth login) if it is yours"
        ) from error
    except EntryNotFoundError as error:
        if isinstance(error, LocalEntryNotFoundError):
            raise PullFailed(f"the hub could not be reached: {_short(error)}; {again}") from error
        raise PullFailed(f"{name.repository} changed while it was pulled: pull again") from error
    except HfHubHTTPError as error:
        raise PullFailed(_http_failure(name, error, again)) from error
    except HTTPError as error:
        raise PullFailed(
            f"the hub could not be reached ({type(error).__name__}: {_short(error)}): check the "
            f"network, or HTTPS_PROXY and HF_ENDPOINT; {again}"
        ) from error
    except OSError as error:
        raise PullFailed(
            f"{error.filename or hub_cache}: {error.strerror or _short(error)}; {again}"
        ) from error


def _http_failure(name: HubName, error: HfHubHTTPError, again: str) -> str:
    status = error.response.status_code
    if status in (401, 403):
        return (
            f"the hub refused {name.repository} ({status}): set HF_TOKEN to a token that may read "
            "it (or run: hf auth login) and pull again"
        )
    if status == 429:
        return f"the hub asks to slow down (429): wait a while; {again}"
    return f"the hub answered {status} for {name.repository}: try again later; {again}"


def _short(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
