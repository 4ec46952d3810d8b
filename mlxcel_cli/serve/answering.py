"""Writes one response from a channel's events: as server-sent events, or whole."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
from aiohttp import web

from engine.errors import EngineClosed
from engine.events import Cancelled, Delta, Done, Failed, PrefillProgress, Started
from engine.text.thinking import ThinkingFilter, ThinkingMarks
from mlxcel_cli.serve.asking import Asked
from mlxcel_cli.serve.channel import Channel, ChannelEvent
from mlxcel_cli.serve.choices import Choice, usage_body
from mlxcel_cli.serve.dialects import error_body
from mlxcel_cli.serve.errors import ApiError, api_error
from mlxcel_cli.serve.life_signs import EarlyHead, LifeSigns
from mlxcel_cli.serve.messages import Refused
from mlxcel_cli.serve.reading import Reading
from mlxcel_cli.serve.schema.requests import StreamOptions
from mlxcel_cli.serve.schema.responses import PromptProgress, UsageField
from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.server import REQUEST_ID, Server
from mlxcel_cli.serve.shapes import Shape, usage_so_far

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
FIRST_EVENT_S = 2.0
"""How long a stream waits for a sign of the engine before it commits to status 200."""
SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Teller(Protocol):
    """Tells one response as its events come, in one API's shape."""

    ping: bytes
    """What a silent stream carries as a sign of life."""
    failure: ApiError | None
    """What ended the response, if that was no good end."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""

    def lines(self, events: Iterable[ChannelEvent]) -> Iterator[bytes]:
        """Take events; the server-sent events they make."""

    def end(self) -> Iterator[bytes]:
        """The last server-sent events."""

    def whole(self) -> object:
        """The response at once."""


class Answerable(Protocol):
    """A request that is ready to be submitted."""

    @property
    def asked(self) -> Asked:
        """Its rows."""

    def telling(self) -> Teller:
        """What tells its answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that is ready to be submitted, and how its answer looks."""

    asked: Asked
    shape: Shape
    model: ServedModel
    marks: tuple[ThinkingMarks, ...] = ()
    """The marks of reasoning that is told apart."""
    options: StreamOptions | None = None
    is_timed: bool = False
    """Whether each event carries the timings so far."""
    tells_progress: bool = False
    """Whether events tell how much of the prompt was read."""

    def telling(self) -> "Telling":
        """What tells its answer."""
        return Telling(self)


class Telling:
    """The choices of one response of OpenAI's API as they grow."""

    ping = PING

    def __init__(self, plan: Plan) -> None:
        self._shape = plan.shape
        self._tokenizer = plan.model.tokenizer
        options = plan.options or StreamOptions()
        self._announced = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats)
        self.choices = tuple(_choice(plan, index) for index in range(len(plan.asked.rows)))
        self._by_id = {
            row.id: choice for row, choice in zip(plan.asked.rows, self.choices, strict=True)
        }
        self._plan = plan
        self._readings = {
            row.id: Reading(len(plan.asked.prompt_of(index).ids))
            for index, row in enumerate(plan.asked.rows)
        }
        self.failure: ApiError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or all(choice.done for choice in self.choices)

    def chunks(self, events: Iterable[ChannelEvent]) -> Iterator[msgspec.Struct]:
        """Take events; the chunks they make. A failure ends the response."""
        for event in events:
            self.failure = failure_of(event)
            if self.failure is not None:
                return
            yield from self._grow(event)

    def lines(self, events: Iterable[ChannelEvent]) -> Iterator[bytes]:
        """Take events; the server-sent events they make."""
        return map(sse_event, self.chunks(events))

    def end(self) -> Iterator[bytes]:
        """What follows the last chunk: counts if they were asked for, and the end mark."""
        if self.failure is not None:
            yield sse_event(self.failure.body)
            return
        if self._announced:
            yield sse_event(self._shape.counts(usage_body(self.choices)))
        yield DONE

    def whole(self) -> msgspec.Struct:
        """The response at once."""
        return self._shape.whole(self.choices, usage_body(self.choices))

    def _grow(self, event: ChannelEvent) -> Iterator[msgspec.Struct]:
        match event:
            case Started():
                opening = self._shape.opening(self._by_id[event.id], self._usage())
                if opening is not None:
                    yield opening
                yield from self._progress(self._readings[event.id].start(event))
            case PrefillProgress():
                yield from self._progress(self._readings[event.id].progress(event.done_tokens))
            case Delta():
                yield from self._progress(self._readings[event.id].end())
                yield from self._written(event)
            case Done():
                choice = self._by_id[event.id]
                written = choice.end(event)
                if not written.is_empty:
                    yield from self._shape.growth(choice, written, self._usage())
                yield self._shape.closing(choice, self._usage())
            case _:
                pass

    def _written(self, delta: Delta) -> Iterator[msgspec.Struct]:
        choice = self._by_id[delta.id]
        written = choice.take(delta, self._tokenizer)
        if written.is_empty:
            return
        for chunk in self._shape.growth(choice, written, self._usage()):
            if self._plan.is_timed:
                timings = self._readings[delta.id].timings(delta)
                yield msgspec.structs.replace(chunk, timings=timings)
            else:
                yield chunk

    def _progress(self, progress: PromptProgress | None) -> Iterator[msgspec.Struct]:
        if progress is not None and self._plan.tells_progress:
            chunk = self._shape.counts(usage_body(self.choices))
            usage = self._usage()
            yield msgspec.structs.replace(chunk, usage=usage, prompt_progress=progress)

    def _usage(self) -> UsageField:
        return usage_so_far(self.choices, announced=self._announced, continuous=self._continuous)


def failure_of(event: ChannelEvent) -> ApiError | None:
    """How an event ends a response badly; None: it does not."""
    if isinstance(event, Refused | Failed):
        return api_error(event.error)
    if isinstance(event, Cancelled):
        return api_error(EngineClosed("the request was cancelled"))
    return None


async def answer_whole(
    request: web.Request, server: Server, plan: Answerable
) -> web.StreamResponse:
    """The response in one piece.

    Raises:
        ApiError: the request failed before its head was sent.
    """
    telling = plan.telling()
    channel = server.worker.open(plan.asked.rows)
    head = EarlyHead(request, channel.wake)
    try:
        while not telling.is_over:
            for _ in telling.lines(await channel.take(head.patience_s())):
                pass
            await head.show()
    finally:
        server.worker.close(channel)
    failure = telling.failure
    if not head.is_sent:
        if failure is not None:
            raise failure
        return json_response(telling.whole())
    value = (
        telling.whole()
        if failure is None
        else error_body(request.path, failure, request[REQUEST_ID])[1]
    )
    return await head.end(msgspec.json.encode(value))


async def answer_stream(
    request: web.Request, server: Server, plan: Answerable
) -> web.StreamResponse:
    """The response as server-sent events; one write for all that a tick brought.

    Raises:
        ApiError: the request failed before its first byte was sent.
    """
    channel = server.worker.open(plan.asked.rows)
    try:
        return await _Stream(request, server, channel, plan.telling()).run()
    finally:
        server.worker.close(channel)


class _Stream:
    def __init__(
        self, request: web.Request, server: Server, channel: Channel, telling: Teller
    ) -> None:
        self._request = request
        self._settings = server.settings
        self._channel = channel
        self._telling = telling
        self._response = web.StreamResponse(headers=SSE_HEADERS)

    async def run(self) -> web.StreamResponse:
        telling = self._telling
        events = await self._channel.take(FIRST_EVENT_S)
        lines = list(telling.lines(events))
        if telling.failure is not None:
            raise telling.failure
        await self._response.prepare(self._request)
        signs = LifeSigns(self._request, self._channel.wake)
        while True:
            if telling.is_over:
                lines += telling.end()
            if lines:
                await self._write(b"".join(lines))
                signs.sent()
            if telling.is_over:
                break
            events = await self._channel.take(self._patience_s(signs))
            lines = self._lines(events)
            if not lines and self._patience_s(signs) == 0:
                lines = [telling.ping]
        await self._response.write_eof()
        return self._response

    def _lines(self, events: Iterable[ChannelEvent]) -> list[bytes]:
        """What events make of the stream; a fault of ours ends it as a failed answer does."""
        try:
            return list(self._telling.lines(events))
        except Exception as error:
            # The head is sent: no other response can take the place of this one.
            logger.exception("%s %s failed", self._request.method, self._request.path)
            self._telling.failure = api_error(error)
            return []

    def _patience_s(self, signs: LifeSigns) -> float | None:
        return signs.patience_s(self._settings.sse_ping_interval)

    async def _write(self, data: bytes) -> None:
        """Send; a client that does not read for too long is dropped."""
        try:
            async with asyncio.timeout(self._settings.slow_reader_timeout):
                await self._response.write(data)
        except TimeoutError:
            transport = self._request.transport
            if transport is not None:
                transport.abort()
            raise ConnectionResetError("the client does not read its stream") from None


def sse_event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def json_response(value: object, status: int = 200) -> web.Response:
    """A JSON body."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def _choice(plan: Plan, index: int) -> Choice:
    asked = plan.asked
    prompt = asked.prompt_of(index)
    per_prompt = len(asked.rows) // len(asked.prompts)
    return Choice(
        index,
        ThinkingFilter(plan.marks, inside=prompt.opens_thinking and bool(plan.marks)),
        # A prompt is counted with the first of its choices.
        prompt_tokens=0 if index % per_prompt else len(prompt.ids),
        has_stops=bool(asked.rows[index].stops),
    )
