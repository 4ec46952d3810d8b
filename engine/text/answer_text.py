"""The text of one answer as it streams: reasoning split from the answer, and both kept.

The marks around the reasoning are never shown, nor is the white space right after a mark.
What might be the beginning of a mark is held back, and nothing else.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """The strings that open and close a model's reasoning."""

    open: str
    close: str


KNOWN_MARKS = (
    ThinkingMarks("<think>", "</think>"),
    ThinkingMarks("<thinking>", "</thinking>"),
    ThinkingMarks("[THINK]", "[/THINK]"),
    ThinkingMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkingMarks("<seed:think>", "</seed:think>"),
)
"""Marks of the open model families; DeepSeek and Qwen use the first, Mistral the third."""


def marks_of(template: str | None) -> tuple[ThinkingMarks, ...]:
    """The marks that a chat template names: those of its model. None: it does not reason."""
    source = template or ""
    return tuple(marks for marks in KNOWN_MARKS if marks.open in source or marks.close in source)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that an answer grew by, all of one kind."""

    text: str
    is_reasoning: bool = False
    tokens: int = 0
    """Tokens generated so far."""


class AnswerText:
    """Splits the raw text of one answer into deltas, and keeps them.

    Any opening mark begins reasoning and any closing mark ends it, wherever it stands;
    reasoning that is never closed stays reasoning.

    Args:
        marks: around the model's reasoning, see ``marks_of``; without any all text is answer.
        inside: whether the prompt has opened the reasoning already.
        begun: whether the prompt also holds some of it; white space then is not right after a mark.
    """

    __slots__ = ("_after_mark", "_deltas", "_held", "_marks", "_pattern", "is_reasoning")

    def __init__(
        self, marks: Sequence[ThinkingMarks] = (), *, inside: bool = False, begun: bool = False
    ) -> None:
        self._marks = {mark.open: True for mark in marks} | {mark.close: False for mark in marks}
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._held = ""
        self._deltas: list[TextDelta] = []
        self.is_reasoning = inside and bool(marks)
        """Whether text at this place is reasoning."""
        self._after_mark = self.is_reasoning and not begun

    def push(self, text: str, tokens: int = 0) -> list[TextDelta]:
        """Add raw text; what of it is certain, possibly nothing."""
        text = self._held + text
        deltas: list[TextDelta] = []
        place = 0
        for match in self._pattern.finditer(text):
            self._append(deltas, text[place : match.start()], tokens)
            self.is_reasoning = self._marks[match.group()]
            self._after_mark = True
            place = match.end()
        held = self._unfinished(text, place)
        self._held = text[len(text) - held :] if held else ""
        self._append(deltas, text[place : len(text) - held], tokens)
        self._deltas += deltas
        return deltas

    def flush(self, tokens: int = 0) -> list[TextDelta]:
        """End the text; what was held back because it could have begun a mark."""
        deltas: list[TextDelta] = []
        self._append(deltas, self._held, tokens)
        self._held = ""
        self._deltas += deltas
        return deltas

    def add(self, delta: TextDelta) -> TextDelta:
        """Keep a delta that is split already: of another server, or the start of the answer."""
        self._deltas.append(delta)
        return delta

    @property
    def text(self) -> str:
        """The answer without its reasoning."""
        return "".join(delta.text for delta in self._deltas if not delta.is_reasoning)

    @property
    def reasoning(self) -> str:
        """The reasoning without its marks."""
        return "".join(delta.text for delta in self._deltas if delta.is_reasoning)

    @property
    def reasoned(self) -> bool:
        """Whether there is any reasoning."""
        return any(delta.is_reasoning for delta in self._deltas)

    @property
    def blocks(self) -> list[TextDelta]:
        """Reasoning and answer in the order in which they were written, neighbours joined."""
        return list(joined(self._deltas))

    def _append(self, deltas: list[TextDelta], text: str, tokens: int) -> None:
        if self._after_mark:
            text = text.lstrip()
        if not text:
            return
        self._after_mark = False
        if deltas and deltas[-1].is_reasoning == self.is_reasoning:
            text = deltas.pop().text + text
        deltas.append(TextDelta(text, self.is_reasoning, tokens))

    def _unfinished(self, text: str, place: int) -> int:
        """Length of the longest end of ``text[place:]`` that begins some mark."""
        longest = 0
        for mark in self._marks:
            for length in range(min(len(mark) - 1, len(text) - place), longest, -1):
                if text.endswith(mark[:length]):
                    longest = length
                    break
        return longest


def joined(events: Iterable[E]) -> Iterator[E | TextDelta]:
    """The events, with neighbouring deltas of one kind as one: a single write for a burst."""
    last: TextDelta | None = None
    for event in events:
        if not isinstance(event, TextDelta):
            if last is not None:
                yield last
                last = None
            yield event
        elif last is not None and event.is_reasoning == last.is_reasoning:
            last = replace(event, text=last.text + event.text)
        else:
            if last is not None:
                yield last
            last = event
    if last is not None:
        yield last
