"""Decides when a waiting client is due a keep-alive, so that one that is gone is noticed.

A client that has closed its half of the connection may wait or be gone; only sending shows
which, and the system of one that is gone refuses the second packet. So such a client is sent one
at once, the next ones after growing intervals, and from then on one a second.
"""

import asyncio
from collections.abc import Callable

from aiohttp import HttpVersion11, web

from mlxcel_cli.serve.connections import FIRST_PROBE_S, LAST_PROBE_S, Connection

OLD_CLIENT_S = 2.0
"""How long a half-closed HTTP/1.0 client is answered without a byte: after that the head of a whole
response, status included, is sent before anybody knows how the answer ends."""
SPACE = b" "
"""What JSON may begin with."""


class KeepAlive:
    """Paces the keep-alives of one response.

    Args:
        request: what is answered.
        wake: called once its client closes its half, for a keep-alive is due then.
    """

    def __init__(self, request: web.Request, wake: Callable[[], None]) -> None:
        protocol = request.protocol
        self._connection = protocol if isinstance(protocol, Connection) else None
        if self._connection is not None:
            self._connection.on_half_closed = wake
        self._sent_s = _now_s()
        self._next_s = FIRST_PROBE_S

    @property
    def is_doubtful(self) -> bool:
        """Whether the client may be gone without anybody having noticed."""
        return self._connection is not None and self._connection.is_half_closed

    def sent(self) -> None:
        """Something was sent."""
        self._sent_s = _now_s()
        if self.is_doubtful:
            self._next_s = min(LAST_PROBE_S, 2 * self._next_s)

    def patience_s(self, interval_s: float) -> float | None:
        """Seconds until the next keep-alive is due; None: none is.

        Args:
            interval_s: between two for a client that is surely there; 0 or less: none.
        """
        interval_s = self._next_s if self.is_doubtful else interval_s
        return max(0.0, self._sent_s + interval_s - _now_s()) if interval_s > 0 else None


class EarlyHead:
    """Begins a whole JSON response before its body is known, for a half-closed HTTP/1.0 client.

    Newer ones are sent ``100 Continue`` by their `Connection`, which this version does not have.
    So the head goes out early and spaces follow it; the body ends with the connection.

    Args:
        request: what is answered.
        wake: called once its client closes its half.
    """

    def __init__(self, request: web.Request, wake: Callable[[], None]) -> None:
        self._request = request
        self._paced = KeepAlive(request, wake) if request.version < HttpVersion11 else None
        self._from_s = _now_s() + OLD_CLIENT_S
        self._response = web.StreamResponse(headers={"Content-Type": "application/json"})

    @property
    def is_sent(self) -> bool:
        """Whether the status is sent."""
        return self._response.prepared

    def patience_s(self) -> float | None:
        """Seconds until a keep-alive is due; None: none is."""
        if self._paced is None or not self._paced.is_doubtful:
            return None
        patience_s = self._paced.patience_s(0)
        assert patience_s is not None
        return max(patience_s, self._from_s - _now_s())

    async def keep_alive(self) -> None:
        """Send a keep-alive if one is due."""
        patience_s = self.patience_s()
        if self._paced is None or patience_s is None or patience_s > 0:
            return
        if self.is_sent:
            await self._response.write(SPACE)
        else:
            await self._response.prepare(self._request)
        self._paced.sent()

    async def end(self, body: bytes) -> web.StreamResponse:
        """Send the body behind a head that was sent."""
        await self._response.write_eof(body)
        return self._response


def _now_s() -> float:
    return asyncio.get_running_loop().time()
