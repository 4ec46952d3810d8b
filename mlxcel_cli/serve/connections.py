"""One client's connection: half-closed ones get their answer, slow heads and bad HTTP an error.

A client that has sent its request may close its half of the connection and wait (``nc -N`` does).
A client that is gone looks the same until something is sent to it. So while an answer is written to
such a client and nothing of it was sent, it is sent ``100 Continue`` now and then, which every
HTTP/1.1 client has to skip: the system of one that is gone refuses it, and the answer is cancelled.
Handlers do the rest (`keep_alive`): responses that have begun, and HTTP/1.0, which skips nothing.
"""

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus
from socket import socket
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractAccessLogger

from mlxcel_cli.serve.errors import SERVER, ApiError
from mlxcel_cli.serve.listening import BACKLOG
from mlxcel_cli.serve.openai.schema import OPENAI

HEAD_S = 30.0
"""Seconds that a client has for the head of a request, from its first byte."""
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
FIRST_PROBE_S = 0.01
LAST_PROBE_S = 1.0
"""Between two probes, at first and at most; each wait is twice the one before."""
LINGER_S = 2.0
"""How long the rest of a body is taken that was refused, so that its client reads why."""


class Connection(web.RequestHandler):
    """aiohttp's protocol, with the limits and errors of this server."""

    __slots__ = ("_head_timer", "_probe_timer", "is_half_closed", "on_half_closed")

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self.is_half_closed = False
        """Whether the client will send nothing more."""
        self.on_half_closed: Callable[[], None] | None = None
        """Called when it will not; set by the handler that answers it now."""

    # -- what the client sends

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that has begun and is not there has a deadline from now on."""
        super().data_received(data)
        # Empty lines between requests begin none.
        begins = bool(data.strip(b"\r\n")) and self._is_idle and self.transport is not None
        if begins and self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_S, self._head_is_late)
        elif not self._is_idle and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more: keep the connection if it is owed an answer."""
        if self.ssl_context is not None or self._request_count == 0 or self._is_idle:
            return None
        if self.is_half_closed:
            # Reading was paused and is resumed: the end is there once more.
            return True
        self.is_half_closed = True
        self._probe(FIRST_PROBE_S)
        if self.on_half_closed is not None:
            self.on_half_closed()
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        for timer in (self._head_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._probe_timer = None
        super().connection_lost(exc)

    # -- what is sent

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write a response; the last one to a half-closed client closes the connection."""
        self.on_half_closed = None
        if self.is_half_closed and not self._messages:
            resp.force_close()
        done = await super().finish_response(request, resp, start_time)
        if self.is_half_closed and not self._messages:
            self.close()
        return done

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to a request that is no HTTP, in the form of OpenAI's errors."""
        super().handle_error(request, status, exc, message)
        reason = HTTPStatus(status)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            error = ApiError(reason, "The request failed.", kind=SERVER, code="internal_error")
        else:
            error = ApiError(reason, message or reason.phrase, code="bad_http")
        body = msgspec.json.encode(OPENAI.error_body(error, ""))
        response = web.Response(body=body, status=status, content_type="application/json")
        response.force_close()
        return response

    # -- internals

    @property
    def _is_idle(self) -> bool:
        """Whether no request is answered, and none is there to be."""
        waits = self._waiter is not None and not self._waiter.done()
        return waits and not self._messages

    def _end_bodies(self) -> None:
        """Nothing comes any more of a body that is not there as a whole."""
        bodies = [payload for _, payload in self._messages]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        for body in bodies:
            if not body.is_eof():
                body.set_exception(web.RequestPayloadError("the body breaks off"))
                body.feed_eof()

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport is None:
            return
        error = ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"The head of the request took longer than {HEAD_S:g} s.",
            code="request_timeout",
        )
        body = msgspec.json.encode(OPENAI.error_body(error, ""))
        head = (
            "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.force_close()

    def _probe(self, next_s: float) -> None:
        """See whether a half-closed client is still there."""
        self._probe_timer = None
        request = self._current_request
        if self.transport is None:
            return
        if self._is_idle:
            self.force_close()
            return
        self._end_bodies()
        if request is not None and _can_be_probed(request):
            self.transport.write(PROBE)
        self._probe_timer = self._loop.call_later(
            next_s, self._probe, min(LAST_PROBE_S, 2 * next_s)
        )


def _can_be_probed(request: web.BaseRequest) -> bool:
    return request.version >= HttpVersion11 and not request.writer.output_size


async def accept(
    runner: web.AppRunner,
    listener: socket,
    tls: ssl.SSLContext | None,
    logger: type[AbstractAccessLogger],
) -> asyncio.Server:
    """Take clients of an open socket from now on.

    Args:
        runner: set up; its server knows all connections.
        listener: what clients connect to.
        tls: the certificate's context.
        logger: of each request.
    """
    loop = asyncio.get_running_loop()
    manager = runner.server
    assert manager is not None

    def connection() -> Connection:
        return Connection(manager, loop=loop, access_log_class=logger, lingering_time=LINGER_S)

    return await loop.create_server(connection, sock=listener, ssl=tls, backlog=BACKLOG)
