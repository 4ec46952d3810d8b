"""Starts servers as processes of their own, waits until they answer, and ends them on any exit."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import platformdirs

READY_S = 180
END_S = 15
THREADS = "OPENBLAS_NUM_THREADS"

# Linux ends the child with its parent, even one that was killed.
_LEASH = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 15)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    name: str
    url: str
    pid: int
    log: Path
    """What it said on stdout and stderr."""


@contextmanager
def mlxcel(
    model: Path, *flags: str, name: str = "mlxcel", watch: Path | None = None
) -> Iterator[Server]:
    """`mlxcel serve`; with ``watch`` its event loop's figures are written to that file."""
    module = ["mlxcel_cli"] if watch is None else ["benchmarks.watched_server", str(watch)]
    options = ["-m", str(model), "--access-log", "off", *flags]
    with _running(name, lambda port: [*module, "serve", *options, "--port", str(port)]) as server:
        yield server


@contextmanager
def mlx_lm(model: Path, *flags: str) -> Iterator[Server]:
    """`mlx_lm.server` with the BLAS that mlxcel uses."""
    cache = platformdirs.user_cache_path("mlxcel-benchmarks")
    fixed = ["--model", str(model), "--log-level", "WARNING", *flags]
    module = ["benchmarks.peer_mlx_lm_server", str(cache)]
    with _running("mlx-lm", lambda port: [*module, *fixed, "--port", str(port)]) as server:
        yield server


def environment() -> dict[str, str]:
    """This process's, with one number of BLAS threads for every variant, whatever the load."""
    from engine.runtime.threads import blas_threads

    kept = {name: text for name, text in os.environ.items() if not name.startswith("MLXCEL_")}
    if not kept.get(THREADS):
        os.environ[THREADS] = kept[THREADS] = str(blas_threads())
    return kept


def leashed(
    module: list[str], output: IO[bytes] | int, *, with_input: bool = False
) -> subprocess.Popen[bytes]:
    """``python -m module...`` as a child that does not outlive this process."""
    return subprocess.Popen(
        [sys.executable, "-c", _LEASH, sys.executable, "-m", *module],
        stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
        stdout=output,
        stderr=None if output == subprocess.PIPE else subprocess.STDOUT,
        env=environment(),
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then make it."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_children_on_signals() -> None:
    """Let SIGTERM and SIGHUP unwind the stack, as Ctrl-C does, so that servers are ended."""

    def leave(signum: int, _: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), leave)


def get(server: Server, path: str, *, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of one page."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def metric(server: Server, name: str) -> float:
    """One figure of mlxcel's ``/metrics``."""
    lines = get(server, "/metrics")[1].decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def completion_text(body: str) -> str | None:
    """The text of a completion, streamed or not; None if a stream broke off."""
    if not body.startswith((":", "data: ")):
        return str(json.loads(body)["choices"][0]["text"])
    lines = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    if lines[-1:] != ["[DONE]"]:
        return None
    events = [json.loads(line) for line in lines[:-1]]
    choices = [choice for event in events for choice in event.get("choices", ())]
    return "".join(choice.get("text", "") for choice in choices)


@contextmanager
def _running(name: str, command: Callable[[int], list[str]]) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log") as log:
        process = leashed(command(port), log.file)
        try:
            server = Server(name, f"http://127.0.0.1:{port}", process.pid, Path(log.name))
            _wait_until_ready(server, process)
            yield server
        finally:
            end(process)


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if get(server, "/health")[0] == 200 and _answers(server):
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{server.name} did not start: {server.log.read_text()[-2000:]}")


def _answers(server: Server) -> bool:
    """One short answer: mlx-lm loads its model behind a healthy page."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=READY_S)
    body: Mapping[str, object] = {"prompt": "Hello there", "max_tokens": 4, "temperature": 0}
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection.getresponse().status == 200
    finally:
        connection.close()
