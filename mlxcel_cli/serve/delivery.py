"""Sends a response to its client: as server-sent events, or whole."""

import asyncio
import logging
from collections.abc import Iterable

import msgspec
from aiohttp import web

from mlxcel_cli.serve.api import Api, json_response
from mlxcel_cli.serve.channel import Channel, ChannelEvent
from mlxcel_cli.serve.errors import api_error
from mlxcel_cli.serve.generation import Generation
from mlxcel_cli.serve.keep_alive import EarlyHead, KeepAlive
from mlxcel_cli.serve.response import ResponseStream
from mlxcel_cli.serve.server import OWNER, REQUEST_ID, SERVER, Server

logger = logging.getLogger(__name__)

FIRST_EVENT_S = 2.0
"""How long a stream waits for the engine's first event before it commits to status 200."""
SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


async def respond(
    request: web.Request,
    generation: Generation,
    response: ResponseStream,
    api: Api,
    *,
    stream: bool,
) -> web.StreamResponse:
    """Submit the rows of a request and send what comes of them.

    Args:
        request: what is answered.
        generation: its rows.
        response: an empty one, of these rows.
        api: in whose form a late error is sent.
        stream: as server-sent events, one write for all that a tick brought; else whole.

    Raises:
        ApiError: the request failed before the response's head was sent.
        EngineClosed: no request is taken any more.
    """
    server = request.app[SERVER]
    channel = server.worker.open(generation.rows_of(request.get(OWNER, "")))
    try:
        if stream:
            return await _EventStream(request, server, channel, response).run()
        return await _whole(request, channel, response, api)
    finally:
        server.worker.close(channel)


async def _whole(
    request: web.Request, channel: Channel, response: ResponseStream, api: Api
) -> web.StreamResponse:
    head = EarlyHead(request, channel.wake)
    while not response.is_over:
        for _ in response.lines(await channel.take(head.patience_s())):
            pass
        await head.keep_alive()
    failure = response.failure
    if not head.is_sent:
        if failure is not None:
            raise failure
        return json_response(response.whole())
    body = response.whole() if failure is None else api.error_body(failure, request[REQUEST_ID])
    return await head.end(msgspec.json.encode(body))


class _EventStream:
    def __init__(
        self, request: web.Request, server: Server, channel: Channel, response: ResponseStream
    ) -> None:
        self._request = request
        self._settings = server.settings
        self._channel = channel
        self._response = response
        self._http = web.StreamResponse(headers=SSE_HEADERS)

    async def run(self) -> web.StreamResponse:
        response = self._response
        lines = list(response.lines(await self._channel.take(FIRST_EVENT_S)))
        if response.failure is not None:
            raise response.failure
        await self._http.prepare(self._request)
        keep_alive = KeepAlive(self._request, self._channel.wake)
        interval_s = self._settings.sse_ping_interval
        while True:
            if response.is_over:
                lines += response.end()
            if lines:
                await self._write(b"".join(lines))
                keep_alive.sent()
            if response.is_over:
                break
            lines = self._lines(await self._channel.take(keep_alive.patience_s(interval_s)))
            if not lines and keep_alive.patience_s(interval_s) == 0:
                lines = [response.ping]
        await self._http.write_eof()
        return self._http

    def _lines(self, events: Iterable[ChannelEvent]) -> list[bytes]:
        """What events make of the stream; a fault of ours ends it as a failed request does."""
        try:
            return list(self._response.lines(events))
        except Exception as error:
            # The head is sent: no other response can take the place of this one.
            logger.exception("%s %s failed", self._request.method, self._request.path)
            self._response.failure = api_error(error)
            return []

    async def _write(self, data: bytes) -> None:
        """Send; a client that does not read for too long is dropped."""
        try:
            async with asyncio.timeout(self._settings.slow_reader_timeout):
                await self._http.write(data)
        except TimeoutError:
            transport = self._request.transport
            if transport is not None:
                transport.abort()
            raise ConnectionResetError("the client does not read its stream") from None
