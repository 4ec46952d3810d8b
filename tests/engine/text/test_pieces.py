"""Which bytes a vocabulary entry stands for."""

import pytest

from engine.text.pieces import PieceRules, byte_alphabet, read_piece_rules, token_bytes

SENTENCEPIECE = PieceRules(space_mark="▁", byte_fallback=True)
REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}


def test_the_alphabet_has_one_character_for_every_byte():
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == 0x20
    assert byte_alphabet()["Ċ"] == 0x0A
    assert byte_alphabet()["Ā"] == 0


@pytest.mark.parametrize(
    ("text", "rules", "expected"),
    [
        pytest.param("Ġthe", PieceRules(byte_level=True), b" the", id="byte-level characters"),
        pytest.param("Ā", PieceRules(byte_level=True), b"\0", id="the NUL byte is NUL"),
        pytest.param(
            "<end▁of▁text>",
            PieceRules(byte_level=True),
            "<end▁of▁text>".encode(),
            id="a name outside the alphabet is itself",
        ),
        pytest.param("▁the", SENTENCEPIECE, b" the", id="space mark"),
        pytest.param("<0xE4>", SENTENCEPIECE, b"\xe4", id="byte token"),
        pytest.param("<0xG4>", SENTENCEPIECE, b"<0xG4>", id="no byte token"),
        pytest.param("<0xE4>", PieceRules(space_mark="▁"), b"<0xE4>", id="no byte fallback"),
    ],
)
def test_a_token_has_the_bytes_its_spelling_says(text, rules, expected):
    assert token_bytes(text, rules, byte_alphabet()) == expected


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        pytest.param({"type": "ByteLevel"}, PieceRules(byte_level=True), id="byte-level"),
        pytest.param(
            {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]},
            SENTENCEPIECE,
            id="gemma: nothing stripped",
        ),
        pytest.param(
            {
                "type": "Sequence",
                "decoders": [
                    REPLACE,
                    FALLBACK,
                    FUSE,
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            PieceRules(space_mark="▁", byte_fallback=True, leading_spaces=1),
            id="llama: one leading space stripped",
        ),
        pytest.param(
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
            PieceRules(space_mark="▁", bare_start=True),
            id="metaspace",
        ),
        pytest.param(
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"},
            PieceRules(space_mark="▁"),
            id="metaspace that prepends nothing",
        ),
        pytest.param({"type": "WordPiece", "prefix": "##"}, None, id="wordpiece"),
        pytest.param({"type": "Sequence", "decoders": [FUSE, REPLACE]}, None, id="another order"),
        pytest.param(
            {
                "type": "Sequence",
                "decoders": [
                    REPLACE,
                    FALLBACK,
                    FUSE,
                    {"type": "Strip", "content": " ", "start": 0, "stop": 1},
                ],
            },
            None,
            id="a strip at the end",
        ),
        pytest.param(None, None, id="no decoder"),
    ],
)
def test_a_decoder_is_understood_or_said_not_to_be(decoder, expected):
    assert read_piece_rules(decoder, byte_level_vocabulary=False) == expected


def test_a_byte_level_vocabulary_wins_over_a_sentencepiece_decoder():
    """mlx-lm#1041."""
    decoder = {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]}
    assert read_piece_rules(decoder, byte_level_vocabulary=True) == PieceRules(byte_level=True)
