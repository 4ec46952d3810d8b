"""Refuses prompts that can never fit, before they are turned into tokens.

Encoding megabytes takes seconds. No token stands for more bytes than the longest one of the
vocabulary, which bounds from below how many a text becomes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.errors import ContextOverflow

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

SHRINKAGE = 4
"""How many times shorter a text may become before it is parted: normal forms compose letters."""
SURELY_SHORT_BYTES = 16
"""Bytes a token of context that are not worth reading the vocabulary for."""


class PromptLimit:
    """Tells texts that cannot fit from those that have to be encoded to know. Any thread may ask.

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


def _far_too_long(least_tokens: int, context_tokens: int) -> ContextOverflow:
    """The error of a prompt that was not even counted."""
    error = ContextOverflow(least_tokens, context_tokens)
    error.args = (
        f"the prompt has at least {least_tokens} tokens; the context holds {context_tokens}, "
        "and at least one must be left for the answer",
    )
    return error
