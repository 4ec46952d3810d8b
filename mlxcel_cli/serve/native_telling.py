"""Tells an answer in llama.cpp's own shape: frames, and one object at the end."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.events import Delta, Done, PrefillProgress, Started
from engine.finish import FinishCause
from engine.outcome import TokenLogprob, TokenLogprobs
from engine.text.thinking import TextKind, ThinkingFilter
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.answering import PING, failure_of, sse_event
from mlxcel_cli.serve.asking import Asked
from mlxcel_cli.serve.channel import ChannelEvent
from mlxcel_cli.serve.choices import Choice, finite, timings_body
from mlxcel_cli.serve.dialects import llama_body
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.line_bounds import IndentFilter
from mlxcel_cli.serve.native_settings import generation_settings
from mlxcel_cli.serve.reading import Reading
from mlxcel_cli.serve.schema.native import (
    NativeCompletion,
    NativeFrame,
    NativeOptions,
    NativeProb,
    NativeProbs,
)
from mlxcel_cli.serve.schema.responses import PromptProgress
from mlxcel_cli.serve.served_model import ServedModel

StopType = Literal["none", "eos", "limit", "word"]

_STOP_TYPES: Mapping[FinishCause, StopType] = {
    FinishCause.EOS: "eos",
    FinishCause.STRUCTURED_STOP: "eos",
    FinishCause.STOP_SEQUENCE: "word",
    FinishCause.LENGTH: "limit",
    FinishCause.CONTEXT_EXHAUSTED: "limit",
    FinishCause.REPETITION_LOOP: "limit",
}


@dataclass(frozen=True, slots=True)
class NativePlan:
    """A request of ``/completion`` that is ready to be submitted."""

    asked: Asked
    body: NativeOptions
    model: ServedModel
    name: str
    """The model's listed one."""
    is_list: bool = False
    """Whether the response is a list, one object for each prompt."""

    def telling(self) -> "NativeTelling":
        """What tells its answer."""
        return NativeTelling(self)


class _Row:
    """One prompt's answer."""

    def __init__(self, index: int, plan: NativePlan) -> None:
        prompt = plan.asked.prompt_of(index)
        self.prompt = prompt.text
        self.prompt_tokens = len(prompt.ids)
        self.choice = Choice(
            index,
            ThinkingFilter(()),
            prompt_tokens=self.prompt_tokens,
            has_stops=bool(plan.asked.rows[index].stops),
        )
        self.settings = generation_settings(plan.asked.rows[index], plan.body)
        self.slot = -1
        self.reading = Reading(self.prompt_tokens)
        self.tokens: list[int] = []
        self._indent = plan.body.n_indent
        self._lines = IndentFilter(self._indent)

    def shown(self, text: str) -> str:
        """What is told of the next piece of its text."""
        return self._lines.push(text) if self._indent else text

    @property
    def text(self) -> str:
        """All of it."""
        text = self.choice.text(TextKind.ANSWER)
        return IndentFilter(self._indent).push(text) if self._indent else text


class NativeTelling:
    """The answers of one response as they grow."""

    ping = PING

    def __init__(self, plan: NativePlan) -> None:
        self._plan = plan
        self._body = plan.body
        self._tokenizer = plan.model.tokenizer
        self._rows = [_Row(index, plan) for index in range(len(plan.asked.rows))]
        self._by_id = dict(zip((row.id for row in plan.asked.rows), self._rows, strict=True))
        self.failure: ApiError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or all(row.choice.done for row in self._rows)

    def lines(self, events: Iterable[ChannelEvent]) -> Iterator[bytes]:
        """Take events; the frames they make."""
        for event in events:
            self.failure = failure_of(event)
            if self.failure is not None:
                return
            yield from map(sse_event, self._grow(event))

    def end(self) -> Iterator[bytes]:
        """The error, if there was one: nothing else follows the last object."""
        if self.failure is not None:
            yield sse_event(llama_body(self.failure))

    def whole(self) -> object:
        """The response at once."""
        bodies = [
            self._selected(self._final(row, row.choice.places, is_whole=True)) for row in self._rows
        ]
        return bodies if self._plan.is_list else bodies[0]

    def _grow(self, event: ChannelEvent) -> Iterator[object]:
        match event:
            case Started():
                row = self._by_id[event.id]
                row.slot = event.slot
                yield from self._progress(row, row.reading.start(event))
            case PrefillProgress():
                row = self._by_id[event.id]
                yield from self._progress(row, row.reading.progress(event.done_tokens))
            case Delta():
                row = self._by_id[event.id]
                yield from self._progress(row, row.reading.end())
                yield from self._frames(row, event)
            case Done():
                row = self._by_id[event.id]
                places = row.choice.end(event).places
                yield self._selected(self._final(row, places, is_whole=False))
            case _:
                pass

    def _progress(self, row: _Row, progress: PromptProgress | None) -> Iterator[NativeFrame]:
        """How much of the prompt was read, if that is asked for and new."""
        if progress is None or not self._body.return_progress:
            return
        yield NativeFrame(
            index=self._index(row),
            content="",
            id_slot=row.slot,
            tokens_predicted=0,
            tokens_evaluated=row.prompt_tokens,
            prompt_progress=progress,
        )

    def _frames(self, row: _Row, delta: Delta) -> Iterator[NativeFrame]:
        row.tokens += delta.tokens
        written = row.choice.take(delta, self._tokenizer)
        tokens = list(delta.tokens) if self._body.return_tokens else UNSET
        if written.is_empty and not tokens:
            return
        yield NativeFrame(
            index=self._index(row),
            content=row.shown("".join(part.text for part in written.parts)),
            tokens=tokens,
            id_slot=row.slot,
            tokens_predicted=delta.completion_tokens,
            tokens_evaluated=row.prompt_tokens,
            completion_probabilities=self._probs(written.places),
            timings=row.reading.timings(delta) if self._body.timings_per_token else UNSET,
        )

    def _final(
        self, row: _Row, places: Sequence[TokenLogprobs], *, is_whole: bool
    ) -> NativeCompletion:
        """The object that ends an answer; that of a stream holds what no frame has told."""
        done = row.choice.done
        assert done is not None
        text = row.text
        predicted = done.usage.completion_tokens
        return NativeCompletion(
            index=row.choice.index,
            content=text if is_whole else "",
            tokens=row.tokens if is_whole and self._body.return_tokens else [],
            id_slot=row.slot,
            model=self._plan.name,
            tokens_predicted=predicted,
            tokens_evaluated=row.prompt_tokens,
            generation_settings=row.settings,
            prompt=row.prompt,
            has_new_line="\n" in text,
            truncated=done.truncated,
            stop_type=_STOP_TYPES[done.finish],
            stopping_word=done.stop_match or "",
            tokens_cached=row.prompt_tokens + predicted - 1,
            timings=timings_body(done.timings),
            completion_probabilities=self._probs(places),
        )

    def _selected(self, final: NativeCompletion) -> object:
        paths = self._body.response_fields
        if not isinstance(paths, list) or not paths:
            return final
        if not all(isinstance(path, str) for path in paths):
            return final
        return selected(msgspec.to_builtins(final), paths)

    def _index(self, row: _Row) -> int | UnsetType:
        return row.choice.index if self._plan.is_list else UNSET

    def _probs(self, places: Sequence[TokenLogprobs]) -> list[NativeProbs] | UnsetType:
        if not self._body.n_probs:
            return UNSET
        return [_probs_body(place, self._tokenizer) for place in places]


def selected(whole: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """What is at these paths, each under its whole path; paths that lead nowhere are left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for part in path.split("/"):
            if not isinstance(value, Mapping) or part not in value:
                break
            value = value[part]
        else:
            found[path] = value
    return found


def _probs_body(place: TokenLogprobs, tokenizer: Tokenizer) -> NativeProbs:
    chosen = _prob(place.chosen, tokenizer)
    top = [_prob(one, tokenizer) for one in place.top]
    return NativeProbs(chosen.id, chosen.token, chosen.bytes, chosen.logprob, top)


def _prob(one: TokenLogprob, tokenizer: Tokenizer) -> NativeProb:
    piece = tokenizer.piece_bytes(one.token)
    text = piece.decode("utf-8", errors="replace")
    return NativeProb(one.token, text, list(piece), finite(one.logprob))
