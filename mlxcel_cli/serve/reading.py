"""Follows how a prompt is read while its answer comes: progress, and timings so far."""

import time

from engine.events import Delta, Started
from engine.outcome import Timings
from mlxcel_cli.serve.choices import timings_body
from mlxcel_cli.serve.schema.responses import PromptProgress, TimingsBody


class Reading:
    """One row's prompt, from the moment the row has a slot."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._cached = 0
        self._started_s = 0.0
        self._told = -1

    def start(self, event: Started) -> PromptProgress | None:
        """The row has a slot; what the prompt cache had of the prompt."""
        self._cached = event.cached_tokens
        self._started_s = time.perf_counter()
        return self.progress(self._cached)

    def progress(self, read_tokens: int) -> PromptProgress | None:
        """How much of the prompt was read; None: nothing that was not told."""
        if read_tokens <= self._told:
            return None
        self._told = read_tokens
        spent_ms = round((time.perf_counter() - self._started_s) * 1000, 3)
        return PromptProgress(self._prompt_tokens, self._cached, read_tokens, spent_ms)

    def end(self) -> PromptProgress | None:
        """The whole prompt was read."""
        return self.progress(self._prompt_tokens)

    def timings(self, delta: Delta) -> TimingsBody:
        """The answer's timings up to this delta."""
        return timings_body(
            Timings(
                prompt_n=self._prompt_tokens - self._cached,
                prompt_s=delta.prefill_s,
                predicted_n=delta.completion_tokens,
                predicted_s=delta.decode_s,
                ttft_s=0.0,
                cache_n=self._cached,
            )
        )
