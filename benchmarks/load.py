"""The load generator: asyncio and aiohttp, one connection for each running request."""

import asyncio
import http.client
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from benchmarks.server_process import Server


@dataclass(slots=True)
class Reply:
    """What came back, filled while it comes."""

    sent_s: float = 0.0
    status: int = 0
    text_at: list[float] = field(default_factory=list)
    """When each event with text came."""
    end_s: float | None = None
    """When the event with the finish reason came."""
    text: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    """What mlxcel says about it."""
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """From sending to the first text, or to the end of an answer whose tokens have none."""
        first = self.text_at[0] if self.text_at else self.end_s
        assert first is not None, "nothing came yet"
        return first - self.sent_s

    @property
    def tokens(self) -> int:
        """Of the answer."""
        return int(self.usage["completion_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, those that needed no forward."""
        return int(self.usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))

    @property
    def per_second(self) -> float:
        """Tokens after the first over the time from first to last text."""
        return (self.tokens - 1) / (self.text_at[-1] - self.text_at[0])

    @property
    def gaps_s(self) -> list[float]:
        """Between events with text."""
        return [b - a for a, b in zip(self.text_at, self.text_at[1:], strict=False)]

    def take(self, event: Mapping[str, Any], at_s: float | None = None) -> None:
        """Note one event of the stream, and when it came; None: now."""
        at_s = time.perf_counter() if at_s is None else at_s
        if "error" in event:
            self.error = str(event["error"])
        for choice in event.get("choices", ()):
            delta = choice.get("delta", choice)
            text = delta.get("content") or delta.get("text") or ""
            if text:
                self.text_at.append(at_s)
                self.text += text
            if choice.get("finish_reason"):
                self.end_s = at_s
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings


class Client:
    """Sends requests to one server.

    Args:
        server: which.
        options: fields that every request carries.
    """

    def __init__(self, server: Server, options: Mapping[str, Any] | None = None) -> None:
        self.server = server
        self._options = {"temperature": 0.0, **(options or {})}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        """Open the connections."""
        self._session = aiohttp.ClientSession(
            base_url=self.server.url,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=900),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close them."""
        assert self._session is not None
        await self._session.close()

    async def complete(
        self, prompt: str, max_tokens: int, reply: Reply | None = None, **fields: Any
    ) -> Reply:
        """Stream the continuation of a text."""
        body = {"prompt": prompt, "max_tokens": max_tokens, **fields}
        return await self._stream("/v1/completions", body, reply)

    async def chat(self, messages: list[dict[str, str]], max_tokens: int, **fields: Any) -> Reply:
        """Stream an answer."""
        body = {"messages": messages, "max_tokens": max_tokens, **fields}
        return await self._stream("/v1/chat/completions", body, None)

    async def _stream(self, path: str, body: dict[str, Any], reply: Reply | None) -> Reply:
        assert self._session is not None
        reply = reply or Reply()
        sent = {"stream": True, "stream_options": {"include_usage": True}, **self._options, **body}
        reply.sent_s = time.perf_counter()
        async with self._session.post(path, json=sent) as response:
            reply.status = response.status
            if response.status != 200:
                reply.error = (await response.text())[:500]
                raise RuntimeError(f"{self.server.name} answered {reply.status}: {reply.error}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    reply.take(json.loads(line[6:]))
        if reply.error:
            raise RuntimeError(f"{self.server.name} broke off: {reply.error}")
        return reply


def stream_blocking(server: Server, prompt: str, max_tokens: int) -> Reply:
    """Stream one continuation from mlxcel, as a client that takes no core from the server.

    Where server and client share two cores, what the event loop, the lines and the JSON of `Client`
    cost is missing in every step. This one only notes when what came; it is read afterwards.
    """
    address = server.url.removeprefix("http://")
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    sent = {"stream": True, "stream_options": {"include_usage": True}, **body}
    parts: list[tuple[float, bytes]] = []
    connection = http.client.HTTPConnection(address, timeout=900)
    try:
        reply = Reply(sent_s=time.perf_counter())
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(sent), headers)
        response = connection.getresponse()
        while data := response.read1(65536):
            parts.append((time.perf_counter(), data))
    finally:
        connection.close()
    reply.status = response.status
    if response.status != 200:
        raise RuntimeError(f"{server.name} answered {response.status}: {parts}")
    left = b""
    for at_s, data in parts:
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                reply.take(json.loads(line[6:]), at_s)
    if reply.error:
        raise RuntimeError(f"{server.name} broke off: {reply.error}")
    return reply


def ours(server: Server, **options: Any) -> Client:
    """A client of mlxcel whose answers have the asked length."""
    return Client(server, {"ignore_eos": True, **options})


def theirs(server: Server) -> Client:
    """A client of mlx-lm."""
    return Client(server)


async def closed_loop(
    client: Client, asks: Iterable[tuple[str, int]], concurrency: int
) -> tuple[float, list[Reply]]:
    """Seconds and replies of all (prompt, new tokens), so many at a time."""
    waiting = deque(asks)
    replies: list[Reply] = []

    async def work() -> None:
        while waiting:
            replies.append(await client.complete(*waiting.popleft()))

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return time.perf_counter() - started, replies


@asynccontextmanager
async def running(
    client: Client, prompts: Iterable[str], max_tokens: int
) -> AsyncIterator[list[Reply]]:
    """Streams that decode meanwhile; at the end their clients go away."""
    replies, tasks = [], []
    for prompt in prompts:
        replies.append(Reply())
        tasks.append(asyncio.create_task(client.complete(prompt, max_tokens, replies[-1])))
    try:
        while not all(len(reply.text_at) > 3 for reply in replies):
            failed = [task for task in tasks if task.done()]
            if failed:
                failed[0].result()
            await asyncio.sleep(0.05)
        yield replies
        if any(task.done() for task in tasks):
            raise RuntimeError(f"{client.server.name}: a stream ended before the measurement did")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
