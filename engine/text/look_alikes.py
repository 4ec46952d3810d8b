"""Keeps track, through a template, of user text that looks like special tokens.

A template trims, splits and joins what it is given, so positions in a message say nothing
about positions in the prompt. Therefore each look-alike is cut in two by a character that occurs
nowhere else before rendering; where the character comes out afterwards, it is removed, and the
special token around it is a user's.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from engine.errors import InvalidParams

CUT_CHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode's noncharacters: no text needs them, and none is white space."""


class LookAlikes:
    """The names of one model's special tokens, to be found in text.

    A special token of one character cannot be cut, and is not looked for.
    """

    __slots__ = ("_anywhere", "_heads", "_longest", "_tails")

    def __init__(self, special_texts: Collection[str]) -> None:
        names = sorted((text for text in special_texts if len(text) > 1), key=len, reverse=True)
        alternatives = "|".join(map(re.escape, names)) or "(?!)"
        # A lookahead, so that names that overlap are all found.
        self._anywhere = re.compile(f"(?=({alternatives}))")
        self._longest = max(map(len, names), default=0)
        self._heads = frozenset(name[:length] for name in names for length in range(1, len(name)))
        self._tails = frozenset(name[length:] for name in names for length in range(1, len(name)))

    def cut(self, value: Any, character: str) -> Any:
        """A copy of JSON-like ``value`` with every look-alike in its strings cut in two."""
        match value:
            case str():
                return self._cut_text(value, character)
            case Mapping():
                return {
                    self.cut(key, character): self.cut(item, character)
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self.cut(item, character) for item in value]
            case _:
                return value

    def restore(self, text: str, character: str) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text without the cuts, and the spans of the special tokens that were cut."""
        parts = text.split(character)
        clean = "".join(parts)
        spans: list[tuple[int, int]] = []
        place = 0
        for part in parts[:-1]:
            place += len(part)
            for start, stop in self._around(clean, place):
                if spans and start < spans[-1][1]:
                    start, stop = min(start, spans[-1][0]), max(stop, spans[-1][1])
                    spans.pop()
                spans.append((start, stop))
        return clean, tuple(spans)

    def _around(self, text: str, place: int) -> Iterator[tuple[int, int]]:
        """Names in ``text`` that begin before ``place`` and end after it."""
        begin = max(0, place - self._longest + 1)
        for match in self._anywhere.finditer(text, begin):
            if match.start() >= place:
                return
            if match.end(1) > place:
                yield match.start(), match.end(1)

    def _cut_text(self, text: str, character: str) -> str:
        places = [match.start() + 1 for match in self._anywhere.finditer(text)]
        # Half a name at an edge could be completed by the text that the template puts there.
        sizes = range(1, min(len(text), self._longest) + 1)
        if not text[:1].isspace() and any(text[:size] in self._tails for size in sizes):
            places.insert(0, 0)
        if not text[-1:].isspace() and any(text[-size:] in self._heads for size in sizes):
            places.append(len(text))
        if not places:
            return text
        edges = [0, *places, len(text)]
        return character.join(text[start:stop] for start, stop in pairwise(edges))


def free_characters(count: int, values: Sequence[Any]) -> list[str]:
    """Some cut characters that occur in no string of the JSON-like values.

    Raises:
        InvalidParams: the messages use them all.
    """
    used: set[str] = set()
    for value in values:
        used |= _characters_of(value)
    free = [character for character in CUT_CHARACTERS if character not in used]
    if len(free) < count:
        raise InvalidParams("messages", "contain every Unicode noncharacter of U+FDD0 to U+FDEF")
    return free[:count]


def _characters_of(value: Any) -> set[str]:
    match value:
        case str():
            return {character for character in CUT_CHARACTERS if character in value}
        case Mapping():
            return set().union(*(_characters_of(key) | _characters_of(value[key]) for key in value))
        case list() | tuple():
            return set().union(*map(_characters_of, value))
        case _:
            return set()
