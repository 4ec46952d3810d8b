"""Finds stop strings in text that arrives in chunks.

The text before the stop is all that is ever shown. What might still become a stop is held
back: the longest suffix that is a proper prefix of any stop, never more.
"""

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """The stop strings of one answer.

    After each chunk the earliest match in the text so far wins, and of two that start at the
    same place the one that stands first in the list. Empty strings are no stops. A character
    costs O(1) amortised whatever the stops are: they form one Aho-Corasick automaton.
    """

    __slots__ = ("_automaton", "_held", "_node", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._automaton = _Automaton([stop for stop in stops if stop])
        self._node = 0
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found; text after it is ignored."""

    def push(self, text: str) -> str:
        """Take a chunk of text and return what is safe to show, possibly empty."""
        if self.matched is not None:
            return ""
        if self._node == 0 and self._automaton.first_characters.isdisjoint(text):
            return text
        base = len(self._held)
        text = self._held + text
        best = self._scan(text, base)
        if best is not None:
            start, index = best
            self.matched = self._automaton.stops[index]
            self._held = ""
            return text[:start]
        safe = len(text) - self._automaton.depth[self._node]
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """End the text and return what was held back; empty after a match."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _scan(self, text: str, base: int) -> tuple[int, int] | None:
        """Walk over the characters from ``base`` on; start and stop index of the earliest match."""
        automaton = self._automaton
        node = self._node
        best: tuple[int, int] | None = None
        for position in range(base, len(text)):
            node = automaton.step(node, text[position])
            if best is not None and position + 1 - automaton.depth[node] > best[0]:
                break
            found = automaton.found[node]
            if found is not None:
                index = found
                start = position + 1 - len(automaton.stops[index])
                best = (start, index) if best is None else min(best, (start, index))
        self._node = node
        return best


class _Automaton:
    """Aho-Corasick over the characters of all stops; node 0 is the root."""

    __slots__ = ("_children", "_fail", "depth", "first_characters", "found", "stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.first_characters = frozenset(stop[0] for stop in stops)
        self.depth = [0]
        self.found: list[int | None] = [None]
        """Per node the longest stop that ends there, which is the one that starts earliest."""
        self._children: list[dict[str, int]] = [{}]
        for index, stop in enumerate(stops):
            self._insert(index, stop)
        self._fail = [0] * len(self.depth)
        self._link()

    def step(self, node: int, character: str) -> int:
        """The node of the longest suffix that is a prefix of some stop."""
        while True:
            child = self._children[node].get(character)
            if child is not None:
                return child
            if node == 0:
                return 0
            node = self._fail[node]

    def _insert(self, index: int, stop: str) -> None:
        node = 0
        for character in stop:
            child = self._children[node].get(character)
            if child is None:
                child = len(self.depth)
                self._children[node][character] = child
                self._children.append({})
                self.depth.append(self.depth[node] + 1)
                self.found.append(None)
            node = child
        if self.found[node] is None:
            self.found[node] = index

    def _link(self) -> None:
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            if self.found[node] is None:
                self.found[node] = self.found[self._fail[node]]
            for character, child in self._children[node].items():
                self._fail[child] = self.step(self._fail[node], character)
                queue.append(child)
