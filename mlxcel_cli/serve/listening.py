"""Opens what the server listens on: a port or a Unix socket, with TLS if asked."""

import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import InvalidParams
from mlxcel_cli.serve.settings import ServeSettings

BACKLOG = 1024
SEND_BUFFER_BYTES = 256 * 1024
"""What the system keeps for a client that does not read; left alone it grows to megabytes, and a
slow reader would be noticed minutes late."""


@dataclass(slots=True)
class Listening:
    """Open sockets, and the URL that leads to them."""

    sockets: list[socket.socket]
    url: str
    path: Path | None = None

    def close(self) -> None:
        """Close them; a Unix socket's file goes too."""
        for one in self.sockets:
            one.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def listen(settings: ServeSettings) -> Listening:
    """Sockets that clients can connect to from now on.

    Raises:
        InvalidParams: the address is in use, or not this machine's; names it.
    """
    path = settings.socket_path
    if path is not None:
        return Listening([_unix_socket(path)], f"unix:{path}", path)
    sockets = _tcp_sockets(settings.host, settings.port)
    port = sockets[0].getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_cert_file is None else "https"
    return Listening(sockets, f"{scheme}://{host}:{port}")


def tls_context(settings: ServeSettings) -> ssl.SSLContext | None:
    """The certificate's context; None without TLS.

    Raises:
        InvalidParams: certificate or key cannot be used.
    """
    if settings.ssl_cert_file is None or settings.ssl_key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
    except OSError as error:
        files = f"{settings.ssl_cert_file} with the key {settings.ssl_key_file}"
        raise InvalidParams("--ssl-cert-file", f"{files} cannot be used: {error}") from error
    return context


def _tcp_sockets(host: str, port: int) -> list[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InvalidParams("--host", f"{host!r} is no address: {error}") from error
    sockets: list[socket.socket] = []
    for family, *_, address in dict.fromkeys(found):
        if sockets and not port:
            # The port that the first one got, for every address of the host.
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        try:
            sockets.append(_tcp_socket(family, address))
        except OSError as error:
            # A host name may have an address of a family that this machine has not.
            if sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue
            for one in sockets:
                one.close()
            raise _unusable(host, port, error) from error
    return sockets


def _tcp_socket(family: int, address: Any) -> socket.socket:
    opened = socket.create_server(address, family=family, backlog=BACKLOG)
    # Connections that it accepts inherit this.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return opened


def _unusable(host: str, port: int, error: OSError) -> InvalidParams:
    if error.errno == errno.EADDRINUSE:
        return InvalidParams(
            "--port",
            f"{port} on {host} is in use by another program; choose another, or 0 for a free one",
        )
    if error.errno == errno.EACCES:
        return InvalidParams("--port", f"{port} on {host} is not allowed to you: {error.strerror}")
    return InvalidParams("--host", f"{host}:{port} cannot be listened on: {error.strerror}")


def _unix_socket(path: Path) -> socket.socket:
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                raise InvalidParams("--unix", f"{path} is in use by another program")
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.bind(str(path))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise InvalidParams("--unix", f"{path}: {error.strerror or error}") from error
    return opened
