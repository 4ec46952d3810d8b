"""What the event loop knows of the model: facts, tokenizer and template, no arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import ContextOverflow

if TYPE_CHECKING:
    from engine.models.facts import ModelFacts
    from engine.text.answer_text import ThinkingMarks
    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

DEFAULT_NAME = "default"
SHRINKAGE = 4
"""How many times shorter a text may become before it is split: normal forms compose characters."""
SURELY_SHORT_BYTES = 16
"""Bytes per token of context below which the vocabulary need not be read."""


class PromptLimit:
    """Refuses prompts that can never fit, before they are encoded. Any thread may ask.

    Encoding megabytes takes seconds. No token stands for more bytes than the longest one of the
    vocabulary, which bounds from below how many a text becomes.

    Args:
        tokenizer: whose vocabulary bounds a token's bytes.
        context_tokens: what a prompt has to fit into.
    """

    def __init__(self, tokenizer: Tokenizer, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._longest = 0

    def check(self, parts: Iterable[str | int]) -> None:
        """Texts and token ids that together make a prompt.

        Raises:
            ContextOverflow: they surely do not fit.
        """
        tokens = nbytes = 0
        for part in parts:
            if isinstance(part, str):
                nbytes += len(part.encode(errors="replace"))
            else:
                tokens += 1
        if tokens <= self._context_tokens and nbytes <= SURELY_SHORT_BYTES * self._context_tokens:
            return
        least = tokens + nbytes // (self._longest_token() * SHRINKAGE)
        if least > self._context_tokens:
            raise _far_too_long(least, self._context_tokens)

    def _longest_token(self) -> int:
        """Most bytes of one token; read once, when it is first needed."""
        if not self._longest:
            piece, vocabulary = self._tokenizer.piece_bytes, range(self._tokenizer.vocab_size)
            self._longest = max(1, max((len(piece(token)) for token in vocabulary), default=1))
        return self._longest


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served. Tokenizer and template may be used on any thread."""

    facts: ModelFacts
    tokenizer: Tokenizer
    template: ChatTemplate | None
    generation: Mapping[str, float]
    context_tokens: int
    """Most tokens of prompt and answer."""
    kv_budget_tokens: int | None
    """Most tokens of KV in all rows together; None: no bound."""
    load_s: float
    keeps_whole_kv: bool = False
    """Whether its KV cannot be cut, so that the prompt cache has to know where turns end."""
    kv_kind: str = ""
    """How its KV is kept: dense, ring, ..."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    limit: PromptLimit = field(init=False)
    """Refuses prompts that surely do not fit."""

    def __post_init__(self) -> None:
        limit = PromptLimit(self.tokenizer, self.context_tokens)
        object.__setattr__(self, "limit", limit)

    @property
    def thinking_marks(self) -> tuple[ThinkingMarks, ...]:
        """The marks around its reasoning; none: it does not reason."""
        return () if self.template is None else self.template.thinking_marks


def _far_too_long(least_tokens: int, context_tokens: int) -> ContextOverflow:
    """The error of a prompt that was not even counted."""
    error = ContextOverflow(least_tokens, context_tokens)
    error.args = (
        f"the prompt has at least {least_tokens} tokens; the context holds {context_tokens}, "
        "and at least one must be left for the answer",
    )
    return error
