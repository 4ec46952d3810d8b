"""Splits a model's text into its reasoning and its answer, as it streams.

The marks around the reasoning are never shown, nor is the white space right after a mark.
What might be the beginning of a mark is held back, and nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class TextKind(StrEnum):
    """What a piece of text is to a reader."""

    REASONING = "reasoning"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text of one kind, not empty."""

    kind: TextKind
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """The texts that open and close a model's reasoning."""

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


class ThinkingFilter:
    """The reasoning of one answer, told from the answer.

    Any opening mark begins reasoning and any closing mark ends it, wherever it stands;
    reasoning that is never closed stays reasoning.
    """

    __slots__ = ("_after_mark", "_held", "_kinds", "_marks", "_pattern", "kind")

    def __init__(self, marks: Sequence[ThinkingMarks], *, inside: bool = False) -> None:
        """Start an answer.

        Args:
            marks: the model's, see ``marks_of``; without any all text is answer.
            inside: whether the prompt has opened the reasoning already.
        """
        self._kinds = {mark.open: TextKind.REASONING for mark in marks}
        self._kinds |= {mark.close: TextKind.ANSWER for mark in marks}
        self._marks = tuple(self._kinds)
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._held = ""
        self._after_mark = inside
        self.kind = TextKind.REASONING if inside else TextKind.ANSWER
        """What text is at this place."""

    def push(self, text: str) -> list[TextPart]:
        """Take a piece of text and return what is certain, possibly nothing."""
        text = self._held + text
        parts: list[TextPart] = []
        place = 0
        for match in self._pattern.finditer(text):
            self._add(parts, text[place : match.start()])
            self.kind = self._kinds[match.group()]
            self._after_mark = True
            place = match.end()
        held = self._unfinished(text, place)
        self._held = text[len(text) - held :] if held else ""
        self._add(parts, text[place : len(text) - held])
        return parts

    def flush(self) -> list[TextPart]:
        """End the text and return what was held back."""
        parts: list[TextPart] = []
        self._add(parts, self._held)
        self._held = ""
        return parts

    def _add(self, parts: list[TextPart], text: str) -> None:
        if self._after_mark:
            text = text.lstrip()
        if not text:
            return
        self._after_mark = False
        if parts and parts[-1].kind is self.kind:
            text = parts.pop().text + text
        parts.append(TextPart(self.kind, text))

    def _unfinished(self, text: str, place: int) -> int:
        """Length of the longest end of ``text[place:]`` that begins some mark."""
        longest = 0
        for mark in self._marks:
            for length in range(min(len(mark) - 1, len(text) - place), longest, -1):
                if text.endswith(mark[:length]):
                    longest = length
                    break
        return longest
