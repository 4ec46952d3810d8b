"""Turns the tokens of one answer into text as they come.

The invariant: the joined strings, ``finish`` included, are ``Tokenizer.decode`` of all tokens.
None holds U+FFFD for a character whose bytes are still arriving, and nothing but such
unfinished characters is held back.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

MAX_UNFINISHED_TOKENS = 12
"""Tokens after which the window decoder gives up waiting for a character to complete; a
character has four bytes at most, so this many tokens mean broken bytes."""


class StreamDecoder(Protocol):
    """The text side of one answer; made by ``Tokenizer.decoder``, used once."""

    def push(self, token: int) -> str:
        """Take one token and return the text that it completes, possibly empty."""

    def finish(self) -> str:
        """Return what is still held: U+FFFD for bytes that never became a character."""


class ByteDecoder:
    """Decodes tokens whose bytes are known: a lookup and an incremental UTF-8 step each."""

    __slots__ = ("_bare_start", "_leading_spaces", "_piece", "_utf8")

    def __init__(
        self,
        piece: Callable[[int], bytes | None],
        *,
        leading_spaces: int = 0,
        bare_start: bool = False,
    ) -> None:
        """Start an answer.

        Args:
            piece: the bytes of a token, None for a token that is not text.
            leading_spaces: most spaces dropped at the start.
            bare_start: whether the first token loses its spaces.
        """
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._leading_spaces = leading_spaces
        self._bare_start = bare_start

    def push(self, token: int) -> str:
        """Take one token and return the text that it completes, possibly empty."""
        piece = self._piece(token)
        if piece is None:
            return ""
        if self._bare_start:
            self._bare_start = False
            piece = piece.replace(b" ", b"")
        text = self._utf8.decode(piece)
        return self._without_leading_spaces(text) if self._leading_spaces else text

    def finish(self) -> str:
        """Return what is still held: U+FFFD for bytes that never became a character."""
        return self._utf8.decode(b"", final=True)

    def _without_leading_spaces(self, text: str) -> str:
        while text and self._leading_spaces:
            if text[0] != " ":
                self._leading_spaces = 0
                break
            text = text[1:]
            self._leading_spaces -= 1
        return text


class WindowDecoder:
    """Decodes with a decoder that is not understood, over the few newest tokens.

    A token's text is what it adds to the text of the tokens released last, so the cost of a
    token does not grow with the answer.
    """

    __slots__ = ("_decode", "_ids", "_released")

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        """Start an answer, which continues the text of the tokens in ``context``."""
        self._decode = decode
        self._ids = list(context)
        self._released = len(self._ids)
        """How many of the window's first tokens have been shown already."""

    def push(self, token: int) -> str:
        """Take one token and return the text that it completes, possibly empty."""
        self._ids.append(token)
        unfinished = len(self._ids) - self._released
        text = self._decode(self._ids)
        # A token without text, a space mark at the start for one, may change the next one's.
        adds_none = len(text) <= len(self._decode(self._ids[: self._released]))
        may_change = adds_none or text.endswith("\N{REPLACEMENT CHARACTER}")
        return "" if may_change and unfinished < MAX_UNFINISHED_TOKENS else self._release(text)

    def finish(self) -> str:
        """Return what is still held: U+FFFD for bytes that never became a character."""
        return self._release(self._decode(self._ids))

    def _release(self, text: str) -> str:
        shown = self._decode(self._ids[: self._released])
        if len(text) > len(shown):
            # The tokens just shown stay as context: a word's spacing depends on the one before.
            del self._ids[: self._released]
            self._released = len(self._ids)
        else:
            del self._ids[self._released :]
        return text[len(shown) :]
