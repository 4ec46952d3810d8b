"""The two response shapes of OpenAI's API: chat completions, and legacy completions."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from engine.text.thinking import TextKind, TextPart
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.choices import (
    Choice,
    Written,
    chat_logprobs_body,
    legacy_logprobs_body,
    timings_body,
    usage_body,
)
from mlxcel_cli.serve.schema.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    Completion,
    CompletionChoice,
    TimingsBody,
    UsageBody,
    UsageField,
)


@dataclass(frozen=True, slots=True)
class Head:
    """What all parts of one response share."""

    id: str
    model: str
    fingerprint: str
    seed: int
    created: int

    @classmethod
    def now(cls, id_: str, model: str, fingerprint: str, seed: int) -> "Head":
        """A response that is made at this moment."""
        return cls(id_, model, fingerprint, seed, int(time.time()))


class Shape(Protocol):
    """How a response is told, whole or as a stream of chunks."""

    def opening(self, choice: Choice, usage: UsageField) -> msgspec.Struct | None:
        """The chunk that begins a choice, if there is one."""

    def growth(
        self, choice: Choice, written: Written, usage: UsageField
    ) -> Iterator[msgspec.Struct]:
        """Chunks of what a choice grew by."""

    def closing(self, choice: Choice, usage: UsageField) -> msgspec.Struct:
        """The chunk that ends a choice."""

    def counts(self, usage: UsageBody) -> msgspec.Struct:
        """The chunk of token counts, with no choices."""

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> msgspec.Struct:
        """The response at once."""


class ChatShape:
    """``/v1/chat/completions``."""

    def __init__(self, head: Head, tokenizer: Tokenizer) -> None:
        self._head = head
        self._tokenizer = tokenizer

    def opening(self, choice: Choice, usage: UsageField) -> ChatChunk:
        """The role, once."""
        delta = ChatDelta(role="assistant", content="")
        return self._chunk([ChatChunkChoice(choice.index, delta)], usage)

    def growth(self, choice: Choice, written: Written, usage: UsageField) -> Iterator[ChatChunk]:
        """One chunk for each kind of text, log-probabilities in the first."""
        logprobs = chat_logprobs_body(written.places, self._tokenizer)
        for delta in [_delta(part) for part in written.parts] or [ChatDelta(content="")]:
            yield self._chunk([ChatChunkChoice(choice.index, delta, logprobs)], usage)
            logprobs = None

    def closing(self, choice: Choice, usage: UsageField) -> ChatChunk:
        """An empty delta with the reason."""
        assert choice.done is not None
        end = ChatChunkChoice(choice.index, ChatDelta(), finish_reason=choice.finish_reason)
        timings = timings_body(choice.done.timings)
        return self._chunk([end], usage, timings=timings, seed=self._head.seed)

    def counts(self, usage: UsageBody) -> ChatChunk:
        """No choices, only counts."""
        return self._chunk([], usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> ChatCompletion:
        """All choices with their messages."""
        head = self._head
        first = choices[0].done
        assert first is not None
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=[
                ChatChoice(
                    choice.index,
                    _message(choice),
                    choice.finish_reason,
                    chat_logprobs_body(choice.places, self._tokenizer),
                )
                for choice in choices
            ],
            usage=usage,
            timings=timings_body(first.timings),
            seed=head.seed,
        )

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: UsageField,
        *,
        timings: TimingsBody | UnsetType = UNSET,
        seed: int | UnsetType = UNSET,
    ) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            usage=usage,
            timings=timings,
            seed=seed,
        )


class CompletionShape:
    """``/v1/completions``; ``echoes`` is what each choice's text begins with."""

    def __init__(self, head: Head, tokenizer: Tokenizer, echoes: Sequence[str]) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._offsets: dict[int, int] = {}

    def opening(self, choice: Choice, usage: UsageField) -> Completion | None:
        """The prompt, when it is to be echoed."""
        echo = self._echoes[choice.index]
        return self._chunk([CompletionChoice(choice.index, echo)], usage) if echo else None

    def growth(self, choice: Choice, written: Written, usage: UsageField) -> Iterator[Completion]:
        """One chunk of text with its log-probabilities."""
        offset = self._offsets.get(choice.index, len(self._echoes[choice.index]))
        logprobs = legacy_logprobs_body(written.places, self._tokenizer, offset=offset)
        if logprobs is not None:
            self._offsets[choice.index] = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
        text = "".join(part.text for part in written.parts)
        yield self._chunk([CompletionChoice(choice.index, text, logprobs)], usage)

    def closing(self, choice: Choice, usage: UsageField) -> Completion:
        """No text, the reason."""
        assert choice.done is not None
        end = CompletionChoice(choice.index, "", finish_reason=choice.finish_reason)
        timings = timings_body(choice.done.timings)
        return self._chunk([end], usage, timings=timings, seed=self._head.seed)

    def counts(self, usage: UsageBody) -> Completion:
        """No choices, only counts."""
        return self._chunk([], usage)

    def whole(self, choices: Sequence[Choice], usage: UsageBody) -> Completion:
        """All choices with their texts."""
        first = choices[0].done
        assert first is not None
        bodies = [
            CompletionChoice(
                choice.index,
                echo + choice.text(TextKind.ANSWER),
                legacy_logprobs_body(choice.places, self._tokenizer, offset=len(echo)),
                choice.finish_reason,
            )
            for choice, echo in zip(choices, self._echoes, strict=True)
        ]
        timings = timings_body(first.timings)
        return self._chunk(bodies, usage, timings=timings, seed=self._head.seed)

    def _chunk(
        self,
        choices: list[CompletionChoice],
        usage: UsageField,
        *,
        timings: TimingsBody | UnsetType = UNSET,
        seed: int | UnsetType = UNSET,
    ) -> Completion:
        head = self._head
        return Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            usage=usage,
            timings=timings,
            seed=seed,
        )


def usage_so_far(choices: Sequence[Choice], *, announced: bool, continuous: bool) -> UsageField:
    """The ``usage`` of a chunk: the counts, null where they come later, or nothing."""
    if continuous:
        return usage_body(choices)
    return None if announced else UNSET


def _delta(part: TextPart) -> ChatDelta:
    if part.kind is TextKind.REASONING:
        return ChatDelta(reasoning_content=part.text, reasoning=part.text)
    return ChatDelta(content=part.text)


def _message(choice: Choice) -> AssistantMessage:
    reasoning: str | UnsetType = choice.text(TextKind.REASONING) or UNSET
    return AssistantMessage(
        choice.text(TextKind.ANSWER), reasoning_content=reasoning, reasoning=reasoning
    )
