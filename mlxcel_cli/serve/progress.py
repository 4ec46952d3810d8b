"""How far a row is: the progress of its prefill, and llama.cpp's timings."""

import time
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.events import Delta, Started
from engine.outcome import Timings
from mlxcel_cli.timings_json import milliseconds, timings_json


class TimingsBody(msgspec.Struct, frozen=True):
    """llama.cpp's ``timings``, of the first choice."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET
    """Tokens that verify rounds were given; these four are there once a round ran."""
    draft_n_accepted: int | UnsetType = UNSET
    draft_rounds: int | UnsetType = UNSET
    draft_kind: Literal["prompt-lookup"] | UnsetType = UNSET


class PromptProgress(msgspec.Struct, frozen=True):
    """How much of a prompt was read."""

    total: int
    cache: int
    processed: int
    time_ms: float


class PrefillClock:
    """Follows the prefill of one row, from the moment the row has a slot."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._started_s = 0.0
        self._reported = -1
        self.cached_tokens = 0
        """What the prompt cache had of the prompt."""

    def start(self, event: Started) -> PromptProgress | None:
        """The row has a slot."""
        self.cached_tokens = event.cached_tokens
        self._started_s = time.perf_counter()
        return self.progress(event.cached_tokens)

    def progress(self, done_tokens: int) -> PromptProgress | None:
        """How much of the prompt was read; None: nothing new."""
        if done_tokens <= self._reported:
            return None
        self._reported = done_tokens
        spent_ms = milliseconds(time.perf_counter() - self._started_s)
        return PromptProgress(self._prompt_tokens, self.cached_tokens, done_tokens, spent_ms)

    def end(self) -> PromptProgress | None:
        """The whole prompt was read."""
        return self.progress(self._prompt_tokens)

    def timings(self, delta: Delta) -> TimingsBody:
        """The answer's timings up to this delta."""
        return timings_body(
            Timings(
                prompt_n=self._prompt_tokens - self.cached_tokens,
                prompt_s=delta.prefill_s,
                predicted_n=delta.completion_tokens,
                predicted_s=delta.decode_s,
                ttft_s=0.0,
                cache_n=self.cached_tokens,
            )
        )


def timings_body(timings: Timings) -> TimingsBody:
    """llama.cpp's figures."""
    return TimingsBody(**timings_json(timings))
