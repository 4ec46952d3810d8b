"""Formats responses of OpenAI's API: chat completions, and legacy completions."""

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from engine.finish import FinishCause
from engine.outcome import TokenLogprobs
from engine.text.answer_text import TextDelta
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.choices import Choice, Growth, finite, token_text
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.generation_fields import StreamOptions
from mlxcel_cli.serve.openai.schema import (
    OPENAI,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChoiceLogprobs,
    Completion,
    CompletionChoice,
    FinishReason,
    LegacyLogprobs,
    PromptTokensDetails,
    TokenLogprobBody,
    TopLogprob,
    UsageBody,
    UsageField,
)
from mlxcel_cli.serve.progress import PromptProgress, TimingsBody, timings_body
from mlxcel_cli.serve.response import Formatter

DONE = b"data: [DONE]\n\n"

_REASONS: Mapping[FinishCause, FinishReason] = {
    FinishCause.LENGTH: "length",
    FinishCause.CONTEXT_EXHAUSTED: "length",
}


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


class OpenAIFormatter(Formatter):
    """What both endpoints share: usage, end mark, errors.

    Args:
        head: of the response.
        choices: its records.
        options: what a stream carries besides the answer.
    """

    _event: type[ChatChunk] | type[Completion]

    def __init__(
        self, head: Head, choices: Sequence[Choice], options: StreamOptions | None = None
    ) -> None:
        self._head = head
        self._choices = choices
        self._options = options or StreamOptions()

    def progress(self, choice: Choice, progress: PromptProgress) -> Iterable[object]:
        """A chunk without choices."""
        del choice
        yield msgspec.structs.replace(self._chunk([]), prompt_progress=progress)

    def closing(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """What was held back, then a chunk with the reason."""
        if growth.is_visible:
            yield from self.delta(choice, growth)
        timings = timings_body(choice.ending.timings)
        yield msgspec.structs.replace(self._ended(choice), timings=timings, seed=self._head.seed)

    def end(self) -> Iterator[bytes]:
        """The counts if they were asked for, and the end mark."""
        if self._options.include_usage:
            usage = usage_body(self._choices)
            yield self.sse(msgspec.structs.replace(self._chunk([]), usage=usage))
        yield DONE

    def error(self, error: ApiError) -> msgspec.Struct:
        """The error object."""
        return OPENAI.error_body(error, "")

    @property
    def _usage(self) -> UsageField:
        """``usage`` of a chunk: the counts, null where they come later, or nothing."""
        if self._options.continuous_usage_stats:
            return usage_body(self._choices)
        return None if self._options.include_usage else UNSET

    def _chunk(
        self, choices: list[Any], timings: TimingsBody | UnsetType = UNSET
    ) -> ChatChunk | Completion:
        """An event of the stream."""
        head = self._head
        return self._event(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            usage=self._usage,
            timings=timings,
        )

    @abstractmethod
    def _ended(self, choice: Choice) -> msgspec.Struct:
        """The chunk that ends a choice, without timings."""


class ChatFormatter(OpenAIFormatter):
    """``/v1/chat/completions``."""

    _event = ChatChunk

    def opening(self, choice: Choice) -> Iterable[object]:
        """The role, once."""
        yield self._chunk([ChatChunkChoice(choice.index, ChatDelta(role="assistant", content=""))])

    def delta(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """One chunk for each kind of text, log-probabilities in the first."""
        if not growth.is_visible:
            return
        logprobs = chat_logprobs(growth.logprobs, choice.tokenizer)
        for delta in [_delta(one) for one in growth.deltas] or [ChatDelta(content="")]:
            yield self._chunk([ChatChunkChoice(choice.index, delta, logprobs)], growth.timings)
            logprobs = None

    def whole(self) -> ChatCompletion:
        """All choices with their messages."""
        head = self._head
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=[
                ChatChoice(
                    choice.index,
                    _message(choice),
                    finish_reason(choice),
                    chat_logprobs(choice.logprobs, choice.tokenizer),
                )
                for choice in self._choices
            ],
            usage=usage_body(self._choices),
            timings=timings_body(self._choices[0].ending.timings),
            seed=head.seed,
        )

    def _ended(self, choice: Choice) -> msgspec.Struct:
        reason = finish_reason(choice)
        return self._chunk([ChatChunkChoice(choice.index, ChatDelta(), finish_reason=reason)])


class CompletionFormatter(OpenAIFormatter):
    """``/v1/completions``.

    Args:
        head: of the response.
        choices: its records.
        options: what a stream carries besides the answer.
        echo: whether each text begins with its prompt.
    """

    _event = Completion

    def __init__(
        self,
        head: Head,
        choices: Sequence[Choice],
        options: StreamOptions | None = None,
        *,
        echo: bool = False,
    ) -> None:
        super().__init__(head, choices, options)
        self._echoes = [choice.prompt.text if echo else "" for choice in choices]
        self._offsets = [len(text) for text in self._echoes]

    def opening(self, choice: Choice) -> Iterable[object]:
        """The prompt, when it is to be echoed."""
        if echo := self._echoes[choice.index]:
            yield self._chunk([CompletionChoice(choice.index, echo)])

    def delta(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """One chunk of text with its log-probabilities."""
        if not growth.is_visible:
            return
        offset = self._offsets[choice.index]
        logprobs = legacy_logprobs(growth.logprobs, choice.tokenizer, offset=offset)
        if logprobs is not None:
            self._offsets[choice.index] = logprobs.text_offset[-1] + len(logprobs.tokens[-1])
        yield self._chunk([CompletionChoice(choice.index, growth.text, logprobs)], growth.timings)

    def whole(self) -> msgspec.Struct:
        """All choices with their texts."""
        texts = [
            CompletionChoice(
                choice.index,
                echo + choice.answer.text,
                legacy_logprobs(choice.logprobs, choice.tokenizer, offset=len(echo)),
                finish_reason(choice),
            )
            for choice, echo in zip(self._choices, self._echoes, strict=True)
        ]
        timings = timings_body(self._choices[0].ending.timings)
        chunk = self._chunk(texts, timings)
        return msgspec.structs.replace(chunk, usage=usage_body(self._choices), seed=self._head.seed)

    def _ended(self, choice: Choice) -> msgspec.Struct:
        reason = finish_reason(choice)
        return self._chunk([CompletionChoice(choice.index, "", finish_reason=reason)])


def finish_reason(choice: Choice) -> FinishReason:
    """OpenAI's word for how a choice ended."""
    return _REASONS.get(choice.ending.finish, "stop")


def usage_body(choices: Sequence[Choice]) -> UsageBody:
    """Counts of a response so far; each prompt counts once."""
    prompts = sum(choice.prompt_tokens for choice in choices)
    written = sum(choice.completion_tokens for choice in choices)
    cached = sum(one.done.usage.cached_tokens for one in choices if one.done and one.prompt_tokens)
    return UsageBody(prompts, written, prompts + written, PromptTokensDetails(cached))


def chat_logprobs(places: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> ChoiceLogprobs | None:
    """Log-probabilities in the chat endpoint's form; None without any."""
    if not places:
        return None
    content = []
    for place in places:
        token, raw = token_text(place.chosen, tokenizer)
        top = [
            TopLogprob(text, finite(one.logprob), list(its_bytes))
            for one in place.top
            for text, its_bytes in [token_text(one, tokenizer)]
        ]
        content.append(TokenLogprobBody(token, finite(place.chosen.logprob), list(raw), top))
    return ChoiceLogprobs(content)


def legacy_logprobs(
    places: Sequence[TokenLogprobs], tokenizer: Tokenizer, *, offset: int
) -> LegacyLogprobs | None:
    """The same for the legacy endpoint; ``offset`` is where the first token's text begins."""
    if not places:
        return None
    tokens, logprobs, tops, offsets = [], [], [], []
    for place in places:
        token, _ = token_text(place.chosen, tokenizer)
        top = {token_text(one, tokenizer)[0]: finite(one.logprob) for one in reversed(place.top)}
        if top:
            top.setdefault(token, finite(place.chosen.logprob))
        tokens.append(token)
        logprobs.append(finite(place.chosen.logprob))
        tops.append(dict(reversed(top.items())))
        offsets.append(offset)
        offset += len(token)
    return LegacyLogprobs(tokens, logprobs, tops, offsets)


def _delta(delta: TextDelta) -> ChatDelta:
    if delta.is_reasoning:
        return ChatDelta(reasoning_content=delta.text, reasoning=delta.text)
    return ChatDelta(content=delta.text)


def _message(choice: Choice) -> AssistantMessage:
    reasoning: str | UnsetType = choice.answer.reasoning or UNSET
    return AssistantMessage(choice.answer.text, reasoning_content=reasoning, reasoning=reasoning)
