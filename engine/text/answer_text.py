"""The text of one answer as it streams: reasoning split from the answer, and both kept."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.text.thinking import TextKind, TextPart, ThinkingFilter, ThinkingMarks

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that an answer grew by, all of one kind."""

    text: str
    is_reasoning: bool = False
    tokens: int = 0
    """Tokens generated so far."""


class AnswerText:
    """Splits the raw text of one answer into deltas, and keeps them.

    Args:
        marks: around the model's reasoning, see ``marks_of``; without any all text is answer.
        inside: whether the prompt has opened the reasoning already.
    """

    __slots__ = ("_filter", "_kept")

    def __init__(self, marks: Sequence[ThinkingMarks] = (), *, inside: bool = False) -> None:
        self._filter = ThinkingFilter(marks, inside=inside and bool(marks))
        self._kept: list[TextDelta] = []

    def push(self, text: str, tokens: int = 0) -> list[TextDelta]:
        """Add raw text; what of it is certain, possibly nothing."""
        return self._keep(self._filter.push(text), tokens)

    def flush(self, tokens: int = 0) -> list[TextDelta]:
        """End the text; what was held back because it could have begun a mark."""
        return self._keep(self._filter.flush(), tokens)

    def add(self, delta: TextDelta) -> TextDelta:
        """Keep a delta that is split already: of another server, or the start of the answer."""
        self._kept.append(delta)
        return delta

    @property
    def text(self) -> str:
        """The answer without its reasoning."""
        return "".join(delta.text for delta in self._kept if not delta.is_reasoning)

    @property
    def reasoning(self) -> str:
        """The reasoning without its marks."""
        return "".join(delta.text for delta in self._kept if delta.is_reasoning)

    @property
    def reasoned(self) -> bool:
        """Whether there is any reasoning."""
        return any(delta.is_reasoning for delta in self._kept)

    @property
    def blocks(self) -> list[TextDelta]:
        """Reasoning and answer in the order in which they were written, neighbours joined."""
        return list(joined(self._kept))

    def _keep(self, parts: list[TextPart], tokens: int) -> list[TextDelta]:
        deltas = [TextDelta(one.text, one.kind is TextKind.REASONING, tokens) for one in parts]
        self._kept += deltas
        return deltas


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
