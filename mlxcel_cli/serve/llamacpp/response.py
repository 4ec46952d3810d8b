"""Formats responses of llama.cpp's API: frames, and one object at the end."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.finish import FinishCause
from engine.outcome import TokenLogprob, TokenLogprobs
from engine.text.tokenizer import Tokenizer
from mlxcel_cli.serve.choices import Choice, Growth, finite, token_text
from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.generation import Generation
from mlxcel_cli.serve.llamacpp.schema import (
    LLAMACPP,
    NativeCompletion,
    NativeFrame,
    NativeOptions,
    NativeProb,
    NativeProbs,
)
from mlxcel_cli.serve.llamacpp.settings import generation_settings
from mlxcel_cli.serve.progress import PromptProgress, timings_body
from mlxcel_cli.serve.response import Formatter
from mlxcel_cli.serve.row_hooks import IndentFilter

StopType = Literal["none", "eos", "limit", "word"]

_STOP_TYPES: Mapping[FinishCause, StopType] = {
    FinishCause.EOS: "eos",
    FinishCause.STRUCTURED_STOP: "eos",
    FinishCause.STOP_SEQUENCE: "word",
    FinishCause.LENGTH: "limit",
    FinishCause.CONTEXT_EXHAUSTED: "limit",
    FinishCause.REPETITION_LOOP: "limit",
}


class LlamaCppFormatter(Formatter):
    """``/completion`` and ``/infill``.

    Args:
        generation: the request's rows.
        choices: their records, one for each prompt.
        body: the request.
        name: the model's listed one.
    """

    def __init__(
        self, generation: Generation, choices: Sequence[Choice], body: NativeOptions, name: str
    ) -> None:
        self._choices = choices
        self._body = body
        self._name = name
        self._is_list = len(choices) > 1
        self._settings = [generation_settings(row, body) for row in generation.rows]
        self._lines = [IndentFilter(body.n_indent) for _ in choices]

    def progress(self, choice: Choice, progress: PromptProgress) -> Iterable[object]:
        """A frame without text."""
        yield self._frame(choice, "", tokens_predicted=0, prompt_progress=progress)

    def delta(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """A frame of text."""
        tokens = list(growth.tokens) if self._body.return_tokens else UNSET
        if not growth.is_visible and not tokens:
            return
        text = growth.text
        yield self._frame(
            choice,
            self._lines[choice.index].push(text) if self._body.n_indent else text,
            tokens=tokens,
            tokens_predicted=choice.completion_tokens,
            completion_probabilities=self._probs(choice, growth.logprobs),
            timings=growth.timings,
        )

    def closing(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """The object that ends an answer; it has what no frame had."""
        yield self._final(choice, growth.logprobs, is_whole=False)

    def error(self, error: ApiError) -> object:
        """The error object."""
        return LLAMACPP.error_body(error, "")

    def whole(self) -> object:
        """One object for each prompt; a list where there are several."""
        bodies = [self._final(one, one.logprobs, is_whole=True) for one in self._choices]
        return bodies if self._is_list else bodies[0]

    def _frame(self, choice: Choice, content: str, **fields: Any) -> NativeFrame:
        return NativeFrame(
            index=choice.index if self._is_list else UNSET,
            content=content,
            id_slot=choice.slot,
            tokens_evaluated=choice.prompt_tokens,
            **fields,
        )

    def _final(
        self, choice: Choice, logprobs: Sequence[TokenLogprobs], *, is_whole: bool
    ) -> object:
        done, body = choice.ending, self._body
        text = choice.answer.text
        if body.n_indent:
            text = IndentFilter(body.n_indent).push(text)
        predicted = done.usage.completion_tokens
        final = NativeCompletion(
            index=choice.index,
            content=text if is_whole else "",
            tokens=choice.tokens if is_whole and body.return_tokens else [],
            id_slot=choice.slot,
            model=self._name,
            tokens_predicted=predicted,
            tokens_evaluated=choice.prompt_tokens,
            generation_settings=self._settings[choice.index],
            prompt=choice.prompt.text,
            has_new_line="\n" in text,
            truncated=done.truncated,
            stop_type=_STOP_TYPES[done.finish],
            stopping_word=done.stop_match or "",
            tokens_cached=choice.prompt_tokens + predicted - 1,
            timings=timings_body(done.timings),
            completion_probabilities=self._probs(choice, logprobs),
        )
        paths = body.response_fields
        if not isinstance(paths, list) or not paths:
            return final
        if not all(isinstance(path, str) for path in paths):
            return final
        return selected(msgspec.to_builtins(final), paths)

    def _probs(
        self, choice: Choice, logprobs: Sequence[TokenLogprobs]
    ) -> list[NativeProbs] | UnsetType:
        if not self._body.n_probs:
            return UNSET
        return [_probs_body(one, choice.tokenizer) for one in logprobs]


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


def _probs_body(one: TokenLogprobs, tokenizer: Tokenizer) -> NativeProbs:
    chosen = _prob(one.chosen, tokenizer)
    top = [_prob(likely, tokenizer) for likely in one.top]
    return NativeProbs(chosen.id, chosen.token, chosen.bytes, chosen.logprob, top)


def _prob(one: TokenLogprob, tokenizer: Tokenizer) -> NativeProb:
    text, raw = token_text(one, tokenizer)
    return NativeProb(one.token, text, list(raw), finite(one.logprob))
