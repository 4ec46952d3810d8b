"""Starts ``mlxcel serve`` as a program on a tiny model, and speaks HTTP to it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FAULTY = Path(__file__).with_name("faulty_server.py")
ROOT = FAULTY.parents[2]
READY = "ready: http"
READY_S = 90
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The stream's events, without its end mark."""
        lines = [line for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int = 0
    notes: list[str] = field(default_factory=list)
    key: str | None = None
    listener: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            sent.setdefault("Authorization", f"Bearer {self.key}")
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def chat(self, messages: Any = HELLO, **fields: Any) -> Reply:
        return self.ask("POST", "/v1/chat/completions", {"messages": messages, **fields})

    def complete(self, prompt: Any = "Hello", **fields: Any) -> Reply:
        return self.ask("POST", "/v1/completions", {"prompt": prompt, **fields})

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return next(float(one.split()[-1]) for one in lines if one.startswith(name + " "))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def send_chat(self, **fields: Any) -> socket.socket:
        """A chat request on a connection of its own, whose answer is not read."""
        body = json.dumps({"messages": HELLO, **fields}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection = self.connect()
        connection.sendall(head.encode() + body)
        return connection

    def wait_for(self, is_so: Callable[[], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.02)

    def wait_until_free(self) -> None:
        self.wait_for(lambda: self.metric("mlxcel_batch_current_size") == 0)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(30)


class Starter:
    """Starts servers and ends what still runs."""

    def __init__(self, environ: dict[str, str], model: Path) -> None:
        self._environ = environ
        self._model = model
        self._running: list[Served] = []

    def __call__(
        self,
        *arguments: str,
        faults: dict[str, Any] | None = None,
        key: str | None = None,
        wait: str | None = READY,
        **environ: str,
    ) -> Served:
        process = subprocess.Popen(
            [sys.executable, str(FAULTY), "serve", "-m", str(self._model), "--port", "0",
             *arguments],
            env=self._environ | {"FAULTS": json.dumps(faults or {}), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        served = Served(process, key=key)
        self._running.append(served)
        served.listener = threading.Thread(target=self._listen, args=(served,), daemon=True)
        served.listener.start()
        deadline = time.monotonic() + READY_S
        while wait and not any(wait in note for note in served.notes):
            ended = process.poll() is not None
            assert not ended, "\n".join(served.notes)
            assert time.monotonic() < deadline, "\n".join(served.notes)
            time.sleep(0.02)
        if wait == READY:
            ready = next(note for note in served.notes if "ready: " in note)
            served.port = int(ready.rpartition(":")[2])
        return served

    def _listen(self, served: Served) -> None:
        for line in served.process.stderr:
            served.notes.append(line.decode().rstrip("\n"))

    def end(self) -> None:
        for served in self._running:
            if served.process.poll() is None:
                served.process.kill()
            served.process.wait()
            served.listener.join()
            for pipe in (served.process.stdout, served.process.stderr):
                pipe.close()


def environ_of(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLXCEL_")}
    return kept | {
        "MLXCEL_HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "HF_HUB_OFFLINE": "1",
        "MLXCEL_BLAS": "off",  # a tiny model needs none, and each home would build its kernels
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama's folder, named ``tiny``."""
    from tests.engine.models.tiny import write_tiny

    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def serve_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve-home")


@pytest.fixture(scope="session")
def server(tiny_model: Path, serve_home: Path) -> Iterator[Served]:
    """One server for all tests that only ask; its context is 512 tokens."""
    starter = Starter(environ_of(serve_home), tiny_model)
    try:
        yield starter("--alias", "pet", "--access-log", "json")
    finally:
        starter.end()


@pytest.fixture
def start_server(tiny_model: Path, serve_home: Path) -> Iterator[Starter]:
    starter = Starter(environ_of(serve_home), tiny_model)
    yield starter
    starter.end()
