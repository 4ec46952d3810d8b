"""Encodes text of which some parts must not become special tokens.

The special tokens outside those parts are swapped for placeholder tokens with the same
splitting rules, in a second tokenizer that reads special tokens as plain text; the
placeholders' ids are swapped back afterwards. So the whole text is still encoded at once, and
words next to a literal part split as they would anywhere.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import tokenizers

PLACEHOLDER_EDGE = "\U0010fff0"
"""First and last character of a placeholder: a private-use character that no vocabulary has."""


LONG_TEXT_CHARACTERS = 2048
"""From here on other threads continue while a string is encoded."""


def token_ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    """The ids of a string, special tokens parsed, none added.

    ``encode`` holds the interpreter's lock: 2 s for a megabyte, in which a server streams nothing
    and no step is begun. A batch of one does not.
    """
    if len(text) < LONG_TEXT_CHARACTERS:
        return list(backend.encode(text, add_special_tokens=False).ids)
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return list(encoding.ids)


@dataclass(frozen=True, slots=True)
class _Swap:
    """The tokenizer with placeholders for special tokens."""

    tokenizer: tokenizers.Tokenizer
    placeholders: dict[str, str]
    """Special token's text to its placeholder."""
    ids: dict[int, int]
    """Placeholder's id to the special token's."""


class LiteralEncoder:
    """Encodes with literal spans. Safe to share between threads.

    The second tokenizer is built (as long as loading the first) when a string first needs it:
    when a user writes what looks like a special token.
    """

    __slots__ = ("_backend", "_lock", "_pattern", "_special", "_special_ids", "_swap", "_unk")

    def __init__(self, backend: tokenizers.Tokenizer, *, unk: str | None) -> None:
        """Prepare without copying anything yet.

        Args:
            backend: the tokenizer that parses special tokens.
            unk: the unknown token's text: the one special token that plain text may give.
        """
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._special = {entry.content: token for token, entry in added.items() if entry.special}
        self._unk = unk
        self._special_ids = frozenset(token for text, token in self._special.items() if text != unk)
        self._swap: _Swap | None = None
        self._lock = Lock()
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode(self, text: str, literals: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """The ids of ``text``.

        Args:
            text: what to encode.
            literals: spans [start, stop), in order: a special token that touches one is text.
        """
        own, has_literal = self._find_own(text, literals)
        if not has_literal:
            ids = token_ids(self._backend, text)
            # A Unigram model may spell a control token by itself, after normalisation.
            special_count = sum(token in self._special_ids for token in ids)
            if special_count == sum(match.group() != self._unk for match in own):
                return tuple(ids)
        return self._encode_swapped(text, own)

    def _find_own(
        self, text: str, literals: Sequence[tuple[int, int]]
    ) -> tuple[list[re.Match[str]], bool]:
        """The special tokens of ``text`` outside the spans, and whether any touched one."""
        own: list[re.Match[str]] = []
        has_literal = False
        spans = list(literals)
        place = 0
        span = 0
        while (match := self._pattern.search(text, place)) is not None:
            while span < len(spans) and spans[span][1] <= match.start():
                span += 1
            if span < len(spans) and spans[span][0] < match.end():
                has_literal = True
                place = match.start() + 1
            else:
                own.append(match)
                place = match.end()
        return own, has_literal

    def _encode_swapped(self, text: str, own: Sequence[re.Match[str]]) -> tuple[int, ...]:
        swap = self._ready_swap()
        parts: list[str] = []
        place = 0
        for match in own:
            parts += (text[place : match.start()], swap.placeholders[match.group()])
            place = match.end()
        swapped = "".join(parts) + text[place:]
        ids: list[int] = []
        for token in token_ids(swap.tokenizer, swapped):
            if token in self._special_ids:
                ids += self._spell(self._backend.id_to_token(token) or "")
            else:
                ids.append(swap.ids.get(token, token))
        return tuple(ids)

    def _spell(self, text: str) -> list[int]:
        """Character by character, for a model that would make a special token of plain text."""
        return [
            piece.id
            for character in text
            for piece in self._backend.model.tokenize(character)
            if piece.id not in self._special_ids
        ]

    def _ready_swap(self) -> _Swap:
        with self._lock:
            if self._swap is None:
                self._swap = self._build_swap()
            return self._swap

    def _build_swap(self) -> _Swap:
        plain = tokenizers.Tokenizer.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        # A number that nobody can guess: else a user could write the placeholder itself.
        secret = secrets.randbelow(10**18)
        entries = self._backend.get_added_tokens_decoder()
        placeholders = {
            text: f"{PLACEHOLDER_EDGE}{secret}{PLACEHOLDER_EDGE}{token}{PLACEHOLDER_EDGE}"
            for text, token in self._special.items()
        }
        plain.add_tokens(
            [
                tokenizers.AddedToken(
                    placeholders[text],
                    single_word=entries[token].single_word,
                    lstrip=entries[token].lstrip,
                    rstrip=entries[token].rstrip,
                    normalized=entries[token].normalized,
                    special=False,
                )
                for text, token in self._special.items()
            ]
        )
        ids: dict[int, int] = {}
        for text, token in self._special.items():
            placeholder_id = plain.token_to_id(placeholders[text])
            if placeholder_id is not None:
                ids[placeholder_id] = token
        return _Swap(plain, placeholders, ids)
