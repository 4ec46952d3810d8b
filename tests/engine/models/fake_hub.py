"""A small hub on loopback: enough of Hugging Face's protocol for the hub client and for us.

It can break off answers, ask for a token, gate a repository, and it records what was asked.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE_BYTES = 2000
"""From this size on a file is announced as a large one, with a sha256."""


@dataclass(slots=True)
class FakeHub:
    """What the hub holds and how it behaves; tests change it at will."""

    files: dict[str, bytes] = field(default_factory=dict)
    repository: str = "owner/name"
    refuse: tuple[int, str] | None = None
    """Status and X-Error-Code of every answer."""
    break_after_bytes: int | None = None
    """Where the next answers with a large file break off; counts down per answer."""
    breaks: int = 0
    """How many answers break off."""
    hold: threading.Event | None = None
    """An answer that breaks off keeps its client waiting until this is set."""
    damaged: bool = False
    """Whether large files are sent with another content."""
    ignore_ranges: bool = False
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Range of every request."""
    endpoint: str = ""

    def fetched(self, name: str) -> list[str | None]:
        """The Range of every GET of that file."""
        return [
            range_
            for method, path, range_ in self.asked
            if method == "GET" and path.endswith(f"/{name}")
        ]

    def siblings(self) -> list[dict[str, Any]]:
        """The files as the hub's API lists them."""
        return [self._sibling(name, content) for name, content in self.files.items()]

    def etag(self, name: str) -> str:
        """What names the file's blob."""
        content = self.files[name]
        if len(content) >= LARGE_BYTES:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "f" * 40}
        if len(content) >= LARGE_BYTES:
            entry["lfs"] = {"sha256": self.etag(name), "size": len(content), "pointerSize": 130}
        else:
            entry["blobId"] = self.etag(name)
        return entry


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve the hub on a free loopback port."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append((self.command, path, self.headers.get("Range")))
        if self.hub.refuse is not None:
            status, code = self.hub.refuse
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "refused"})
            return
        root = f"/{self.hub.repository}/resolve/"
        if path.startswith(f"/api/models/{self.hub.repository}/tree/"):
            self._json(
                [
                    {
                        "type": "file", "path": one["rfilename"], "size": one["size"],
                        "oid": one["blobId"],
                        **({"lfs": {**one["lfs"], "oid": one["lfs"]["sha256"]}}
                           if "lfs" in one else {}),
                    }
                    for one in self.hub.siblings()
                ]
            )  # fmt: skip
        elif re.fullmatch(rf"/api/models/{self.hub.repository}(/revision/[^/]+)?", path):
            name = self.hub.repository
            self._json({"id": name, "sha": COMMIT, "siblings": self.hub.siblings()})
        elif path.startswith(root) and path.removeprefix(root).partition("/")[2] in self.hub.files:
            self._file(path.removeprefix(root).partition("/")[2])
        else:
            code = "EntryNotFound" if path.startswith(root) else "RepoNotFound"
            self._send(404, b"{}", {"X-Error-Code": code})

    def _file(self, name: str) -> None:
        content = self.hub.files[name]
        headers = {"ETag": f'"{self.hub.etag(name)}"', "X-Repo-Commit": COMMIT}
        large = len(content) >= LARGE_BYTES
        if large and self.hub.damaged:
            content = bytes(len(content))
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        status = 200
        if found and not self.hub.ignore_ranges:
            start = int(found[1])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        cut = None
        if large and self.command == "GET" and self.hub.breaks > 0:
            self.hub.breaks -= 1
            cut = self.hub.break_after_bytes
        self._send(status, content, headers, cut)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        if cut is not None:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "GET":
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that was interrupted
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None and self.hub.hold is not None:
                self.hub.hold.wait(30)
