"""DRY's sequence breakers as token ids."""

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine.text.breakers import breaker_ids
from engine.text.tokenizer import Tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    letters = [*pre_tokenizers.ByteLevel.alphabet(), "a:", "b:c"]
    backend = tokenizers.Tokenizer(models.BPE({text: i for i, text in enumerate(letters)}, []))
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
