"""Tokens to text, as they come."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.text import tokenizer as text_tokenizer
from engine.text.decoder import MAX_UNFINISHED_TOKENS, ByteDecoder, WindowDecoder

TOKENS = st.lists(st.integers(min_value=-3, max_value=460), max_size=40)
SAME_FIXTURE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)


def pieces_of(decoder, tokens):
    return [*(decoder.push(token) for token in tokens), decoder.finish()]


@SAME_FIXTURE
@given(tokens=TOKENS, skip_special=st.booleans())
def test_joined_pieces_are_the_one_shot_text(any_tokenizer, tokens, skip_special):
    pieces = pieces_of(any_tokenizer.decoder(skip_special=skip_special), tokens)
    assert "".join(pieces) == any_tokenizer.decode(tokens, skip_special=skip_special)


@SAME_FIXTURE
@given(tokens=st.lists(st.integers(min_value=0, max_value=460), max_size=40))
def test_byte_level_text_is_what_the_tokenizers_library_decodes(
    byte_level, byte_level_backend, tokens
):
    assert byte_level.decode(tokens) == byte_level_backend.decode(tokens)


@SAME_FIXTURE
@given(text=st.text(max_size=60))
def test_sentencepiece_text_is_what_the_tokenizers_library_decodes(
    sentencepiece, sentencepiece_backend, text
):
    tokens = sentencepiece.encode(text)
    assert sentencepiece.decode(tokens) == sentencepiece_backend.decode(tokens)


@SAME_FIXTURE
@given(text=st.text(max_size=40))
def test_no_piece_of_whole_text_has_a_replacement_character(byte_level, sentencepiece, text):
    """mlc-llm#804, llama.cpp#4036."""
    text = text.replace("\N{REPLACEMENT CHARACTER}", "")
    for tokenizer in (byte_level, sentencepiece):
        pieces = pieces_of(tokenizer.decoder(), tokenizer.encode(text))
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte_and_ordinary_text_at_once(sentencepiece):
    tokens = sentencepiece.encode("hi😀hi")
    pieces = pieces_of(sentencepiece.decoder(), tokens)
    assert pieces == ["", "h", "i", "", "", "", "😀", "h", "i", ""]


def test_each_byte_fallback_character_is_shown_when_it_is_complete(sentencepiece):
    """A run of byte tokens is not held back until its end."""
    decoder = sentencepiece.decoder()
    shown = [decoder.push(token) for token in sentencepiece.encode("日本")]
    assert [piece for piece in shown if piece] == ["日", "本"]


def test_bytes_that_never_become_a_character_end_as_one_replacement_character(sentencepiece):
    first_byte = sentencepiece.token_id("<0xE4>")
    decoder = sentencepiece.decoder()
    assert decoder.push(first_byte) == ""
    assert decoder.finish() == "\N{REPLACEMENT CHARACTER}"
    assert decoder.finish() == ""


def test_a_broken_byte_does_not_swallow_what_follows(sentencepiece):
    tokens = [sentencepiece.token_id(text) for text in ("<0xE4>", "h", "<0xFF>", "i")]
    assert sentencepiece.decode(tokens) == "\ufffdh\ufffdi"


@pytest.mark.parametrize(
    ("spaces", "expected"), [(0, "hi"), (1, " hi"), (2, "  hi"), (5, "     hi")]
)
def test_leading_spaces_survive_the_round_trip(byte_level, sentencepiece, spaces, expected):
    text = " " * spaces + "hi"
    for tokenizer in (byte_level, sentencepiece):
        assert "".join(pieces_of(tokenizer.decoder(), tokenizer.encode(text))) == expected


def test_the_nul_byte_is_nul(byte_level, sentencepiece):
    for tokenizer in (byte_level, sentencepiece):
        assert tokenizer.decode(tokenizer.encode("a\0b")) == "a\0b"


def test_special_tokens_are_text_only_when_asked(byte_level):
    tokens = byte_level.encode("hi<|im_end|>", parse_special=True)
    assert byte_level.decode(tokens) == "hi"
    assert byte_level.decode(tokens, skip_special=False) == "hi<|im_end|>"


def test_metaspace_drops_the_space_of_the_first_text_token_only(unigram):
    tokens = [unigram.token_id("</s>"), *unigram.encode("hi hi")]
    assert unigram.decode(tokens) == "hi hi"


def test_a_window_shows_a_character_when_its_last_token_comes():
    """Tokens here are bytes; the decoder under test is not told so."""
    decoder = WindowDecoder(lambda ids: bytes(ids).decode(errors="replace"))
    pieces = pieces_of(decoder, "a😀b".encode())
    assert pieces == ["a", "", "", "", "😀", "b", ""]


def test_a_window_gives_broken_bytes_up_and_stays_small():
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes(ids).decode(errors="replace")

    pieces = pieces_of(WindowDecoder(decode), [0x80] * 100)
    assert "".join(pieces) == "\N{REPLACEMENT CHARACTER}" * 100
    assert longest <= 2 * MAX_UNFINISHED_TOKENS


def test_a_window_of_tokens_without_text_stays_small():
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return ""

    decoder = WindowDecoder(decode)
    assert pieces_of(decoder, [7] * 100) == [""] * 101
    assert max(lengths) <= 2 * MAX_UNFINISHED_TOKENS


@given(st.lists(st.binary(max_size=4), max_size=20), st.integers(0, 3), st.booleans())
def test_a_byte_decoder_is_one_decode_of_all_bytes(pieces, leading_spaces, bare_start):
    decoder = ByteDecoder(
        dict(enumerate(pieces)).get, leading_spaces=leading_spaces, bare_start=bare_start
    )
    shown = "".join(pieces_of(decoder, range(len(pieces))))
    first = pieces[0].replace(b" ", b"") if bare_start and pieces else b"".join(pieces[:1])
    expected = b"".join([first, *pieces[1:]]).decode(errors="replace")
    stripped = expected.removeprefix(" ") if leading_spaces else expected
    for _ in range(leading_spaces - 1):
        stripped = stripped.removeprefix(" ")
    assert shown == stripped


@pytest.fixture(scope="module")
def other_decoder() -> Tokenizer:
    """A decoder whose rules are not known here: byte fallback, then Metaspace."""
    words = ["<unk>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "t", "▁a", "é"]
    backend = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


SPACES = st.lists(st.sampled_from([257, 258, 259, 260]), max_size=MAX_UNFINISHED_TOKENS)


@SAME_FIXTURE
@given(tokens=SPACES)
def test_a_window_keeps_the_spaces_that_an_unknown_decoder_gives(other_decoder, tokens):
    wrapped = text_tokenizer.Tokenizer(other_decoder, {})
    assert "".join(pieces_of(wrapped.decoder(), tokens)) == other_decoder.decode(tokens)


def test_a_window_gives_a_continuation_the_text_that_follows_its_context(other_decoder):
    wrapped = text_tokenizer.Tokenizer(other_decoder, {})
    context, tokens = [257, 258], [258, 257, 259]
    continued = "".join(pieces_of(wrapped.decoder(context=context), tokens))
    assert wrapped.decode(context) + continued == wrapped.decode([*context, *tokens])


@SAME_FIXTURE
@given(tokens=st.lists(st.integers(0, 260), max_size=30))
def test_a_stream_of_an_unknown_decoder_is_its_one_shot_text(other_decoder, tokens):
    wrapped = text_tokenizer.Tokenizer(other_decoder, {})
    assert "".join(pieces_of(wrapped.decoder(), tokens)) == wrapped.decode(tokens)


@pytest.mark.parametrize("text", ["café", "čaj", "<ä>", "plain"])
def test_an_added_token_is_spelt_as_it_is(text):
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, normalized=False)])
    tokenizer = text_tokenizer.Tokenizer(backend, {})
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert "".join(pieces_of(tokenizer.decoder(), tokens)) == text
    assert tokenizer.piece_bytes(tokens[0]) == text.encode()
