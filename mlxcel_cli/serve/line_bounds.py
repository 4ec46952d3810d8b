"""Ends an answer by its lines: one that is indented too little, or time after a new line.

Both are llama.cpp's, for editors that complete code: ``n_indent`` and ``t_max_predict_ms``.
"""

import time
from collections.abc import Callable, Sequence

from engine.finish import FinishCause
from engine.text.decoder import StreamDecoder

INDENTS = " \t"


class IndentFilter:
    """Lets an answer pass up to its first line that is indented less than it has to be.

    The first line goes on from the prompt and is never looked at. A line of nothing counts as not
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
        for place, letter in enumerate(text):
            if self._indent is not None:
                if letter in INDENTS:
                    self._indent += 1
                    continue
                if self._indent < self._least:
                    self.is_over = True
                    return text[:place]
                self._indent = None
            if letter == "\n":
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
