"""The text of one row."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.text.row_text import RowText


def test_a_stop_string_across_tokens_ends_the_text_before_it(byte_level):
    row = RowText(byte_level.decoder(), ["quick br"])
    ended = [row.push(token) for token in byte_level.encode("the quick brown fox")]
    assert True in ended
    row.flush()
    assert row.stop_match == "quick br"
    assert row.text == "the "


def test_taken_pieces_are_what_was_released_since(byte_level):
    row = RowText(byte_level.decoder())
    first, *rest = byte_level.encode("hi there")
    row.push(first)
    begin = row.take()
    assert row.take() == ""
    for token in rest:
        row.push(token)
    assert begin + row.take() == row.text == "hi there"


def test_the_end_releases_what_might_have_become_a_stop(byte_level):
    row = RowText(byte_level.decoder(), ["hi there"])
    for token in byte_level.encode("oh hi the"):
        row.push(token)
    assert row.take() == "oh "
    row.flush()
    assert row.take() == "hi the"
    assert row.stop_match is None


def test_the_decoders_tail_goes_through_the_stops(sentencepiece):
    """mlxcel#633: unfinished bytes at the end are text, and text that stops are sought in."""
    row = RowText(sentencepiece.decoder(), ["\N{REPLACEMENT CHARACTER}"])
    row.push(sentencepiece.token_id("h"))
    row.push(sentencepiece.token_id("<0xE4>"))
    row.flush()
    assert row.text == "h"
    assert row.stop_match == "\N{REPLACEMENT CHARACTER}"


def test_a_second_flush_does_nothing(sentencepiece):
    row = RowText(sentencepiece.decoder(), ["hello"])
    for text in ("h", "<0xE4>"):
        row.push(sentencepiece.token_id(text))
    row.flush()
    row.flush()
    assert row.text == "h\N{REPLACEMENT CHARACTER}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    tokens=st.lists(st.integers(0, 430), max_size=30),
    stops=st.lists(st.text(alphabet="the ", max_size=3), max_size=3),
)
def test_without_a_match_the_text_is_the_decoded_tokens(any_tokenizer, tokens, stops):
    row = RowText(any_tokenizer.decoder(), stops)
    taken = []
    for token in tokens:
        if row.push(token):
            break
        taken.append(row.take())
    row.flush()
    taken.append(row.take())
    assert "".join(taken) == row.text
    whole = any_tokenizer.decode(tokens)
    if row.stop_match is None:
        assert row.text == whole
    else:
        assert whole.startswith(row.text + row.stop_match)


def written(tokenizer, stops, *parts):
    """A row's text after tokens of special names and of plain texts."""
    row = RowText.of(tokenizer, stops)
    for part in parts:
        ids = [tokenizer.token_id(part)] if part in tokenizer.special_texts else None
        for token in ids or tokenizer.encode(part):
            if row.push(token):
                return row
    row.flush()
    return row


@pytest.mark.parametrize(
    ("stop", "parts", "text"),
    [
        ("<|im_start|>", ("hi", "<|im_start|>", "there"), "hi"),
        ("<|im_start|>user", ("hi", "<|im_start|>", "user", "x"), "hi"),
        ("i<|im_start|>", ("hi", "<|im_start|>", "user"), "h"),
        ("<|im_end|><|im_start|>", ("hi", "<|im_end|>", "<|im_start|>"), "hi"),
    ],
)
def test_a_stop_string_finds_the_special_token_it_names(byte_level, stop, parts, text):
    row = written(byte_level, [stop], *parts)
    assert (row.text, row.stop_match) == (text, stop)


@pytest.mark.parametrize("stop", ["<|im_start|>", "x<|im_start|>"])
def test_a_stop_string_finds_the_name_where_it_is_spelt(byte_level, stop):
    row = RowText.of(byte_level, [stop])
    for token in byte_level.encode("hi x<|im_start|>"):
        row.push(token)
    assert row.stop_match == stop


def test_a_special_token_that_ends_nothing_is_no_text(byte_level):
    row = written(byte_level, ["<|im_start|>system"], "hi", "<|im_start|>", "user")
    assert (row.text, row.stop_match) == ("hiuser", None)


def test_a_special_token_that_is_text_is_found_as_text(byte_level):
    row = RowText.of(byte_level, ["<|im_start|>user"], keep_texts=("<|im_start|>",))
    tokens = [byte_level.token_id("<|im_start|>"), *byte_level.encode("user")]
    assert [row.push(token) for token in tokens][-1]
    assert row.stop_match == "<|im_start|>user"


@pytest.mark.parametrize("name", ["sentencepiece", "unigram"])
def test_a_continuation_keeps_the_space_of_its_first_token(request, name):
    tokenizer = request.getfixturevalue(name)
    token = tokenizer.token_id({"sentencepiece": "▁the", "unigram": "▁hi"}[name])
    word = {"sentencepiece": "the", "unigram": "hi"}[name]
    prompt = tokenizer.encode("h", add_bos=True)
    texts = []
    for context in ((), prompt):
        row = RowText.of(tokenizer, context=context)
        row.push(token)
        row.flush()
        texts.append(row.text)
    assert texts == [word, f" {word}"]


def test_a_prompt_of_special_tokens_alone_is_no_text_to_continue(sentencepiece):
    row = RowText.of(sentencepiece, context=(sentencepiece.bos_id,))
    row.push(sentencepiece.token_id("▁the"))
    assert row.text == "the"


def test_a_stop_string_with_a_space_is_found_at_the_start_of_a_continuation(sentencepiece):
    row = RowText.of(sentencepiece, [" the"], context=sentencepiece.encode("h"))
    assert row.push(sentencepiece.token_id("▁the"))
    assert row.stop_match == " the"
