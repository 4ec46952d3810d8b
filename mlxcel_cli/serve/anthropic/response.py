"""Formats responses of Anthropic's Messages API: blocks, and events that grow them."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from engine.events import Done
from engine.finish import FinishCause
from mlxcel_cli.serve import json_text
from mlxcel_cli.serve.anthropic.schema import (
    ANTHROPIC,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageBody,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopDelta,
    StopReason,
    TextBlock,
    TextBlockDelta,
    ThinkingBlock,
    ThinkingBlockDelta,
)
from mlxcel_cli.serve.choices import Choice, Growth
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.response import Formatter

_REASONS: Mapping[FinishCause, StopReason] = {
    FinishCause.LENGTH: "max_tokens",
    FinishCause.CONTEXT_EXHAUSTED: "model_context_window_exceeded",
}


class MessagesFormatter(Formatter):
    """``/v1/messages``.

    Args:
        choice: the answer's record.
        id_: of the message.
        request_id: of the HTTP request.
        name: the model's, as the client wrote it.
    """

    def __init__(self, choice: Choice, id_: str, request_id: str, name: str) -> None:
        self._choice = choice
        self._id = id_
        self._request_id = request_id
        self._name = name
        self._blocks = 0
        self._open_is_reasoning: bool | None = None
        """None: no block is open."""
        self.ping = self.sse(Ping())

    def sse(self, event: object) -> bytes:
        """One event, named as its type."""
        assert isinstance(event, msgspec.Struct)
        name = str(event.__struct_config__.tag).encode()
        return b"event: " + name + b"\ndata: " + json_text.encode(event) + b"\n\n"

    def opening(self, choice: Choice) -> Iterable[object]:
        """The message, without content."""
        yield MessageStart(self._message(choice, [], None))
        yield Ping()

    def delta(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """More of the open block, or of a new one."""
        del choice
        for one in growth.deltas:
            yield from self._opened(is_reasoning=one.is_reasoning)
            delta = ThinkingBlockDelta if one.is_reasoning else TextBlockDelta
            yield BlockDelta(self._blocks - 1, delta(one.text))

    def closing(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """The end of the last block, and the reason with the counts."""
        yield from self.delta(choice, growth)
        if not choice.answer.text:  # clients look for one
            yield from self._opened(is_reasoning=False)
        yield from self._closed()
        yield MessageDelta(_stop(choice.ending), _usage(choice))

    def end(self) -> Iterable[bytes]:
        """The mark that the message is whole."""
        yield self.sse(MessageStop())

    def error(self, error: ApiError) -> object:
        """The error object."""
        return ANTHROPIC.error_body(error, self._request_id)

    def whole(self) -> MessageBody:
        """The message with its blocks."""
        blocks: list[Block] = [
            ThinkingBlock(one.text) if one.is_reasoning else TextBlock(one.text)
            for one in self._choice.answer.blocks
        ]
        if not self._choice.answer.text:
            blocks.append(TextBlock())
        return self._message(self._choice, blocks, _stop(self._choice.ending))

    def _opened(self, *, is_reasoning: bool) -> Iterator[object]:
        """A block of this kind, unless it is open."""
        if self._open_is_reasoning is is_reasoning:
            return
        yield from self._closed()
        yield BlockStart(self._blocks, ThinkingBlock() if is_reasoning else TextBlock())
        self._blocks += 1
        self._open_is_reasoning = is_reasoning

    def _closed(self) -> Iterator[object]:
        if self._open_is_reasoning is not None:
            yield BlockStop(self._blocks - 1)
        self._open_is_reasoning = None

    def _message(self, choice: Choice, content: list[Block], stop: StopDelta | None) -> MessageBody:
        return MessageBody(
            id=self._id,
            model=self._name,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=_usage(choice),
        )


def _usage(choice: Choice) -> MessageUsage:
    cached = choice.prefill.cached_tokens
    return MessageUsage(
        input_tokens=choice.prompt_tokens - cached,
        output_tokens=choice.completion_tokens,
        cache_read_input_tokens=cached,
    )


def _stop(done: Done) -> StopDelta:
    if done.stop_match is not None:
        return StopDelta("stop_sequence", done.stop_match)
    return StopDelta(_REASONS.get(done.finish, "end_turn"), None)
