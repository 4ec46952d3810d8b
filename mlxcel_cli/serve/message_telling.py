"""Tells an answer in the shape of Anthropic's Messages API: blocks, and events that grow them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from engine.events import Delta, Done, Started
from engine.finish import FinishCause
from engine.text.thinking import TextKind, TextPart, ThinkingFilter, ThinkingMarks
from mlxcel_cli.serve.answering import failure_of
from mlxcel_cli.serve.asking import Asked
from mlxcel_cli.serve.channel import ChannelEvent
from mlxcel_cli.serve.choices import Choice
from mlxcel_cli.serve.dialects import anthropic_body
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.schema.anthropic import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageBody,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
)
from mlxcel_cli.serve.served_model import ServedModel

_REASONS: Mapping[FinishCause, StopReason] = {
    FinishCause.LENGTH: "max_tokens",
    FinishCause.CONTEXT_EXHAUSTED: "model_context_window_exceeded",
}


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """A request of ``/v1/messages`` that is ready to be submitted."""

    asked: Asked
    id: str
    request_id: str
    model: ServedModel
    name: str
    """The model's name, as the client wrote it."""
    marks: tuple[ThinkingMarks, ...]

    def telling(self) -> "MessageTelling":
        """What tells its answer."""
        return MessageTelling(self)


class MessageTelling:
    """The answer of one response as it grows."""

    def __init__(self, plan: MessagePlan) -> None:
        self._plan = plan
        prompt = plan.asked.prompts[0]
        self._prompt_tokens = len(prompt.ids)
        self._choice = Choice(
            0,
            ThinkingFilter(plan.marks, inside=prompt.opens_thinking and bool(plan.marks)),
            prompt_tokens=self._prompt_tokens,
            has_stops=bool(plan.asked.rows[0].stops),
        )
        self._cached = 0
        self._blocks = 0
        self._open: TextKind | None = None
        self.ping = message_event(Ping())
        self.failure: ApiError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or self._choice.done is not None

    def lines(self, events: Iterable[ChannelEvent]) -> Iterator[bytes]:
        """Take events; the server-sent events they make."""
        for event in events:
            self.failure = failure_of(event)
            if self.failure is not None:
                return
            yield from map(message_event, self._grow(event))

    def end(self) -> Iterator[bytes]:
        """The error, or the mark that the message is whole."""
        if self.failure is None:
            yield message_event(MessageStop())
            return
        body = anthropic_body(self.failure, self._plan.request_id)
        yield b"event: error\ndata: " + msgspec.json.encode(body) + b"\n\n"

    def whole(self) -> MessageBody:
        """The response at once."""
        done = self._choice.done
        assert done is not None
        blocks: list[Block] = []
        for part in _merged(self._choice.parts):
            is_thought = part.kind is TextKind.REASONING
            blocks.append(ThinkingBlock(part.text) if is_thought else TextBlock(part.text))
        if not any(isinstance(block, TextBlock) for block in blocks):
            blocks.append(TextBlock())
        return self._message(blocks, _stop(done))

    def _grow(self, event: ChannelEvent) -> Iterator[MessageEvent]:
        match event:
            case Started():
                self._cached = event.cached_tokens
                yield MessageStart(self._message([], None))
                yield Ping()
            case Delta():
                written = self._choice.take(event, self._plan.model.tokenizer)
                yield from self._more(written.parts)
            case Done():
                yield from self._more(self._choice.end(event).parts)
                yield from self._finished(event)
            case _:
                pass

    def _more(self, parts: Iterable[TextPart]) -> Iterator[MessageEvent]:
        for part in parts:
            yield from self._opened(part.kind)
            is_thought = part.kind is TextKind.REASONING
            delta = ThinkingDelta(part.text) if is_thought else TextDelta(part.text)
            yield BlockDelta(self._blocks - 1, delta)

    def _opened(self, kind: TextKind) -> Iterator[MessageEvent]:
        """A block of this kind, unless it is open."""
        if self._open is kind:
            return
        yield from self._closed()
        block = ThinkingBlock() if kind is TextKind.REASONING else TextBlock()
        yield BlockStart(self._blocks, block)
        self._blocks += 1
        self._open = kind

    def _closed(self) -> Iterator[MessageEvent]:
        if self._open is not None:
            yield BlockStop(self._blocks - 1)
        self._open = None

    def _finished(self, done: Done) -> Iterator[MessageEvent]:
        has_text = any(part.kind is TextKind.ANSWER for part in self._choice.parts)
        if not has_text:  # clients look for one
            yield from self._opened(TextKind.ANSWER)
        yield from self._closed()
        yield MessageDelta(_stop(done), self._usage())

    def _message(self, content: list[Block], stop: StopDelta | None) -> MessageBody:
        return MessageBody(
            id=self._plan.id,
            model=self._plan.name,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=self._usage(),
        )

    def _usage(self) -> MessageUsage:
        return MessageUsage(
            input_tokens=self._prompt_tokens - self._cached,
            output_tokens=self._choice.completion_tokens,
            cache_read_input_tokens=self._cached,
        )


def message_event(event: MessageEvent) -> bytes:
    """One server-sent event, named as its type."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _stop(done: Done) -> StopDelta:
    if done.stop_match is not None:
        return StopDelta("stop_sequence", done.stop_match)
    return StopDelta(_REASONS.get(done.finish, "end_turn"), None)


def _merged(parts: Iterable[TextPart]) -> list[TextPart]:
    """Neighbours of one kind as one."""
    merged: list[TextPart] = []
    for part in parts:
        if merged and merged[-1].kind is part.kind:
            merged[-1] = TextPart(part.kind, merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged
