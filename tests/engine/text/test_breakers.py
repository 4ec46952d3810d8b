"""DRY's sequence breakers as token ids."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from engine.text.breakers import KEPT_SETS, breaker_ids
from engine.text.tokenizer import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    characters = [*pre_tokenizers.ByteLevel.alphabet(), "a:", "b:c"]
    backend = tokenizers.Tokenizer(models.BPE({text: i for i, text in enumerate(characters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})


def spelt(tokenizer: Tokenizer, *breakers: str) -> set[bytes]:
    return {
        b"".join(tokenizer.piece_bytes(token) for token in ids)
        for ids in breaker_ids(tokenizer, breakers)
    }


def test_every_token_that_holds_a_breaker_breaks(tokenizer):
    assert spelt(tokenizer, ":") == {b":", b"a:", b"b:c"}


def test_a_breaker_of_several_tokens_breaks_as_their_sequence(tokenizer):
    assert spelt(tokenizer, "xy") == {b"xy"}


@pytest.mark.parametrize("breakers", [(), ("",)])
def test_an_empty_breaker_is_none(tokenizer, breakers):
    assert breaker_ids(tokenizer, breakers) == ()


def test_a_lone_surrogate_is_in_no_token_and_fails_nothing(tokenizer):
    assert b"a:" in spelt(tokenizer, "\udcff", ":")


def obvious(tokenizer: Tokenizer, breakers: list[str]) -> set[tuple[int, ...]]:
    marks = [text.encode() for text in breakers if text]
    pieces = {token: tokenizer.piece_bytes(token) for token in range(tokenizer.vocab_size)}
    alone = {(token,) for token in pieces if any(mark in pieces[token] for mark in marks)}
    spelled = {tokenizer.encode(text) for text in breakers if text}
    return alone | {ids for ids in spelled if len(ids) > 1}


@given(breakers=st.lists(st.text("ab:c<é", max_size=3), max_size=4))
def test_the_search_finds_what_looking_at_each_token_finds(byte_level, breakers):
    assert set(breaker_ids(byte_level, breakers)) == obvious(byte_level, breakers)


def test_what_was_asked_before_is_looked_up(byte_level):
    first = breaker_ids(byte_level, [":", "\n"])
    assert breaker_ids(byte_level, [":", "", "\n"]) is first


def test_few_sets_are_kept(byte_level):
    first = breaker_ids(byte_level, ["x0"])
    for number in range(1, KEPT_SETS + 1):
        breaker_ids(byte_level, [f"x{number}"])
    again = breaker_ids(byte_level, ["x0"])
    assert again == first
    assert again is not first
