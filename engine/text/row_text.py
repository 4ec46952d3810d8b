"""The text of one row: its tokens go in, text that is safe to show comes out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from engine.text.decoder import StreamDecoder
from engine.text.stops import StopMatcher

MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode's noncharacters: one stands for a special token that a stop string names."""


class TextSource(Protocol):
    """What a row's text needs of a tokenizer."""

    special_texts: tuple[str, ...]

    def decoder(
        self,
        *,
        skip_special: bool = True,
        keep_texts: Collection[str] = (),
        context: Sequence[int] = (),
    ) -> StreamDecoder:
        """A fresh decoder."""

    def token_id(self, text: str) -> int | None:
        """The id of an entry of the vocabulary."""


class RowText:
    """A row's decoder and stop strings.

    ``push`` every token that is text (an end token is not), then ``flush`` at an end that is
    no stop string. The joined ``take`` results are ``text``.

    A stop string may hold the name of a special token, which is no text: it is found where the
    model draws that token, and where it spells the name.
    """

    __slots__ = ("_decoder", "_marks", "_matcher", "_named", "_released", "_shown", "_taken")

    def __init__(
        self,
        decoder: StreamDecoder,
        stops: Sequence[str] = (),
        *,
        specials: Mapping[str, int] | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            decoder: fresh; special tokens are no text to it.
            stops: stop strings.
            specials: names and ids of the special tokens that stop strings may hold.
        """
        self._decoder = decoder
        named = [name for name in specials or {} if any(name in stop for stop in stops)]
        # A name that is part of another is replaced behind it.
        named.sort(key=len, reverse=True)
        marks = dict(zip(named, MARKS, strict=False))
        self._marks = {specials[name]: mark for name, mark in marks.items()} if specials else {}
        self._shown = str.maketrans(dict.fromkeys(marks.values()))
        self._named = {_marked(stop, marks): stop for stop in stops}
        self._matcher = StopMatcher(list(dict.fromkeys([*stops, *self._named])))
        self._released: list[str] = []
        self._taken = 0

    @classmethod
    def of(
        cls,
        tokenizer: TextSource,
        stops: Sequence[str] = (),
        keep_texts: Collection[str] = (),
        context: Sequence[int] = (),
    ) -> "RowText":
        """The text of a row of a tokenizer's model.

        Args:
            tokenizer: the model's.
            stops: stop strings; they may name special tokens.
            keep_texts: special tokens that are text all the same.
            context: the tokens of the text that the row continues.
        """
        specials: dict[str, int] = {}
        for name in tokenizer.special_texts if stops else ():
            token = tokenizer.token_id(name)
            if token is not None and name not in keep_texts:
                specials[name] = token
        decoder = tokenizer.decoder(keep_texts=keep_texts, context=context)
        return cls(decoder, stops, specials=specials)

    def push(self, token: int) -> bool:
        """Take the newest token; True when a stop string is complete."""
        self._release(self._decoder.push(token) + self._marks.get(token, ""))
        return self._matcher.matched is not None

    def take(self) -> str:
        """The text released since the last call."""
        text = "".join(self._released[self._taken :])
        self._taken = len(self._released)
        return text

    def flush(self) -> None:
        """Release what is held back: the answer has ended. A second call does nothing.

        The decoder's tail goes through the matcher too, so a stop string that only the end
        completes is still found.
        """
        self._release(self._decoder.finish())
        self._keep(self._matcher.flush())

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the text, None so far."""
        matched = self._matcher.matched
        return None if matched is None else self._named.get(matched, matched)

    @property
    def text(self) -> str:
        """Everything released so far."""
        return "".join(self._released)

    def _release(self, text: str) -> None:
        self._keep(self._matcher.push(text))

    def _keep(self, text: str) -> None:
        if self._marks:
            text = text.translate(self._shown)
        if text:
            self._released.append(text)


def _marked(stop: str, marks: Mapping[str, str]) -> str:
    """A stop string with a mark for each special token's name."""
    for name, mark in marks.items():
        stop = stop.replace(name, mark)
    return stop
