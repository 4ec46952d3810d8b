"""Fetches one file of the hub, resuming where an earlier try stopped."""

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from engine.errors import PullFailed
from engine.models.hub_files import HubFile

TRIES = 5
"""How often a transfer that brought nothing is tried again before it is given up."""

_READ_BYTES = 1 << 20
_TIMEOUT_S = 20
_FIRST_WAIT_S = 0.5
_POLL_S = 0.1
_SHA256_HEX = 64


def fetch(
    url: str,
    file: HubFile,
    blobs: Path,
    report: Callable[[int], None],
    *,
    first_wait_s: float = _FIRST_WAIT_S,
) -> None:
    """Bring the file to its place among the blobs; `report` is called with its bytes so far.

    Transfers that break off are taken up again at once, and by the next call after a kill.

    Raises:
        PullFailed: The content is not what the hub announced.
        HTTPError, OSError: of the hub's client and of the disk, after the last try.
    """
    partial = file.partial(blobs)
    with partial.open("ab") as opened, _alone(opened, lambda: report(opened.tell())):
        if file.is_at(blobs):  # another process was faster
            partial.unlink(missing_ok=True)
            return
        if opened.tell() > file.size_bytes:
            _start_over(opened)
        _transfer(url, file, opened, report, first_wait_s)
        opened.flush()
        _check(file, partial)
        partial.rename(blobs / file.etag)


def _transfer(
    url: str,
    file: HubFile,
    opened: BinaryIO,
    report: Callable[[int], None],
    first_wait_s: float,
) -> None:
    tries, wait_s = TRIES, first_wait_s
    report(opened.tell())
    while opened.tell() < file.size_bytes:
        before = opened.tell()
        try:
            _receive(url, file, opened, report)
        except HTTPError as error:
            if _is_final(error):
                raise
            failure: HTTPError | None = error
        else:
            failure = None
        if opened.tell() > before:
            tries, wait_s = TRIES, first_wait_s
            continue
        tries -= 1
        if tries == 0:
            if failure is not None:
                raise failure
            raise PullFailed(f"the hub sent nothing more of {file.name}; try again later")
        time.sleep(wait_s)
        wait_s *= 2


def _receive(url: str, file: HubFile, opened: BinaryIO, report: Callable[[int], None]) -> None:
    """Append what one answer brings."""
    start = opened.tell()
    # A compressed answer would have other lengths than the file.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as answer:
        hf_raise_for_status(answer)
        if start and answer.status_code != 206:  # the whole file is sent anew
            _start_over(opened)
        for piece in answer.iter_bytes(chunk_size=_READ_BYTES):
            opened.write(piece)
            if opened.tell() > file.size_bytes:
                _start_over(opened)
                raise PullFailed(f"the hub sent more of {file.name} than it announced; pull again")
            report(opened.tell())


def _start_over(opened: BinaryIO) -> None:
    opened.seek(0)  # cutting a file leaves its position where it was
    opened.truncate()


def _is_final(error: HTTPError) -> bool:
    """Whether another try cannot help: the hub answered, and did not say "later"."""
    if not isinstance(error, HfHubHTTPError):
        return False
    return error.response.status_code < 500 and error.response.status_code not in (408, 429)


def _check(file: HubFile, partial: Path) -> None:
    """Compare with the announced hash; only large files are announced with a plain one."""
    if len(file.etag) != _SHA256_HEX:
        return
    with partial.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != file.etag:
        partial.unlink()
        raise PullFailed(f"{file.name} arrived damaged and was dropped; pull again")


@contextmanager
def _alone(opened: BinaryIO, waiting: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time write to the file; a dying process gives the lock back."""
    while True:
        try:
            fcntl.flock(opened.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            waiting()
            time.sleep(_POLL_S)
    opened.seek(0, 2)
    yield
