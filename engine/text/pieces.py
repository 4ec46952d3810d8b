"""Says which bytes each vocabulary entry stands for, under the tokenizer's own decoder.

Three spellings cover nearly every model: byte-level BPE (one character a byte), SentencePiece
(``▁`` for a space, ``<0x0A>`` for a byte) and Metaspace. Any other decoder has no bytes of
its own per token, and ``read_piece_rules`` says so by None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PieceRules:
    """How token texts become bytes and what is dropped at the start of a string."""

    byte_level: bool = False
    """Each character of a token is one byte, in GPT-2's alphabet."""
    space_mark: str | None = None
    """The text that stands for a space, ``▁`` in SentencePiece vocabularies."""
    byte_fallback: bool = False
    """Tokens of the form ``<0x0A>`` are single bytes."""
    leading_spaces: int = 0
    """Most spaces dropped at the start of a string."""
    bare_start: bool = False
    """The first token loses its space marks (Metaspace)."""


def read_piece_rules(
    decoder: Mapping[str, Any] | None, *, byte_level_vocabulary: bool
) -> PieceRules | None:
    """The rules that a ``tokenizer.json`` decoder amounts to; None when it is not understood.

    Args:
        decoder: the ``decoder`` value of ``tokenizer.json``.
        byte_level_vocabulary: whether the vocabulary is spelt in GPT-2's byte alphabet. It
            wins: some Mistral files pair such a vocabulary with a SentencePiece decoder,
            and print ``Ġ`` for every space if that decoder is believed (mlx-lm#1041).
    """
    if byte_level_vocabulary:
        return PieceRules(byte_level=True)
    if decoder is None:
        return None
    stages = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    match [stage["type"] for stage in stages]:
        case ["ByteLevel"]:
            return PieceRules(byte_level=True)
        case ["Metaspace"]:
            return PieceRules(
                space_mark=stages[0]["replacement"],
                bare_start=stages[0].get("prepend_scheme", "always") != "never",
            )
        case _:
            return _sentencepiece_rules(stages)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's character for every byte value, as character to value.

    Printable Latin-1 characters stand for themselves; the other 68 bytes take the characters
    from U+0100 on, in order.
    """
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [value for value in range(256) if value not in set(itself)]
    return {chr(value): value for value in itself} | {
        chr(0x100 + place): value for place, value in enumerate(moved)
    }


def token_bytes(text: str, rules: PieceRules, alphabet: Mapping[str, int]) -> bytes:
    """The bytes of one token that is not at the start of a string."""
    if rules.byte_level:
        if all(character in alphabet for character in text):
            return bytes(alphabet[character] for character in text)
        return text.encode()
    if rules.byte_fallback and len(text) == 6 and text.startswith("<0x") and text[5] == ">":
        digits = text[3:5]
        if all(digit in "0123456789abcdefABCDEF" for digit in digits):
            return bytes([int(digits, 16)])
    if rules.space_mark is not None:
        text = text.replace(rules.space_mark, " ")
    return text.encode()


def _sentencepiece_rules(stages: Sequence[Mapping[str, Any]]) -> PieceRules | None:
    """The rules of Replace, ByteFallback, Fuse, Strip, each at most once and in this order."""
    order = ["Replace", "ByteFallback", "Fuse", "Strip"]
    found = {stage["type"]: stage for stage in stages}
    if [stage["type"] for stage in stages] != [name for name in order if name in found]:
        return None
    mark, leading_spaces = None, 0
    if "Replace" in found:
        mark = found["Replace"]["pattern"].get("String")
        if not mark or found["Replace"]["content"] != " ":
            return None
    if "Strip" in found:
        strip = found["Strip"]
        if "Fuse" not in found or strip["content"] != " " or strip["stop"] != 0:
            return None
        leading_spaces = strip["start"]
    if "Fuse" not in found and "ByteFallback" not in found:
        return None
    return PieceRules(
        space_mark=mark, byte_fallback="ByteFallback" in found, leading_spaces=leading_spaces
    )
