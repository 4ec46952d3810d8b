"""Row hooks: what a feature of a request decides about its row, between two steps.

A bound on the tokens of reasoning, and bounds on lines that llama.cpp has for editors:
``n_indent`` and ``t_max_predict_ms``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.finish import FinishCause
from engine.text.answer_text import AnswerText
from engine.text.decoder import StreamDecoder

if TYPE_CHECKING:
    import numpy as np

INDENTS = " \t"


class ThinkingBudget:
    """Row hooks (`engine.rows.RowHooks`) that let a model think no longer than it may.

    Args:
        decoder: a fresh one to which the marks are text; the answer becomes text here once more.
        text: a fresh one, with the model's marks.
        close_ids: the tokens of the mark that ends its thoughts.
        prompt_tokens: length of the prompt.
        tokens: how many its thoughts may take, over the whole answer.
        vocab_size: width of the logits.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        text: AnswerText,
        close_ids: Sequence[int],
        *,
        prompt_tokens: int,
        tokens: int,
        vocab_size: int,
    ) -> None:
        self._decoder = decoder
        self._text = text
        self._close_ids = tuple(close_ids)
        self._seen = prompt_tokens
        self._left = tokens
        self._vocab_size = vocab_size
        self._closing = 0
        """Tokens of the mark that are written by now."""

    def mask(self, ids: Sequence[int]) -> np.ndarray | None:
        """Only the mark's next token, once the thoughts have taken what they may."""
        for token in ids[self._seen :]:
            self._read(token)
        self._seen = len(ids)
        if self._left > 0 or not self._is_thinking:
            return None
        import numpy as np

        mask = np.full(self._vocab_size, -np.inf, np.float32)
        mask[self._close_ids[self._closing]] = 0.0
        return mask

    def finish(self, ids: Sequence[int]) -> None:
        """Nothing: an answer follows."""

    @property
    def _is_thinking(self) -> bool:
        return self._text.is_reasoning

    def _read(self, token: int) -> None:
        is_spent = self._left <= 0 and self._is_thinking
        self._left -= self._is_thinking
        self._text.push(self._decoder.push(token))
        self._closing = self._closing + 1 if is_spent and self._is_thinking else 0


class IndentFilter:
    """Passes an answer up to its first line that is not indented enough.

    The first line continues the prompt and is not checked. A line of nothing counts as not
    indented, as in llama.cpp.

    Args:
        least: spaces and tabs that every later line begins with.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._indent: int | None = None
        """Of the line that has had nothing else yet; None: it has."""
        self.is_over = False
        """Whether such a line came; nothing passes any more."""

    def push(self, text: str) -> str:
        """What of ``text`` passes."""
        if self.is_over:
            return ""
        for place, character in enumerate(text):
            if self._indent is not None:
                if character in INDENTS:
                    self._indent += 1
                    continue
                if self._indent < self._least:
                    self.is_over = True
                    return text[:place]
                self._indent = None
            if character == "\n":
                self._indent = 0
        return text


class LineBounds:
    """Row hooks (`engine.rows.RowHooks`) that end an answer by its lines, as its length would.

    Args:
        decoder: a fresh one; the answer's tokens become text here once more.
        prompt_tokens: length of the prompt.
        indent: least indentation of every line but the first; 0 is off.
        max_ms: milliseconds from the first token after which an answer ends that has a new line;
            0 or less is off.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        prompt_tokens: int,
        *,
        indent: int,
        max_ms: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._decoder = decoder
        self._seen = prompt_tokens
        self._lines = IndentFilter(indent)
        self._max_s = max_ms / 1000
        self._clock = clock
        self._first_s: float | None = None
        self._has_new_line = False

    def mask(self, ids: Sequence[int]) -> None:
        """Nothing: every token may come."""

    def finish(self, ids: Sequence[int]) -> FinishCause | None:
        """LENGTH once a bound is reached."""
        now_s = self._clock()
        if self._first_s is None:
            self._first_s = now_s
        text = "".join([self._decoder.push(token) for token in ids[self._seen :]])
        self._seen = len(ids)
        self._has_new_line |= "\n" in text
        self._lines.push(text)
        is_late = 0 < self._max_s < now_s - self._first_s
        is_over = self._lines.is_over or (is_late and self._has_new_line)
        return FinishCause.LENGTH if is_over else None
