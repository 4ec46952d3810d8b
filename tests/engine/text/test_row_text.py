"""The text of one row."""

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
