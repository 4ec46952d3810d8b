"""Text in which some special tokens are only text."""

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from engine.text.literals import LONG_TEXT_CHARACTERS, LiteralEncoder, token_ids


@pytest.fixture
def folding_backend() -> tokenizers.Tokenizer:
    """A Unigram model that folds full-width characters, so that it can spell ``</s>`` itself."""
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0)]
    vocabulary += [(character, -3.0) for character in "abs</>"]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, 0, False))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    for text in ("<unk>", "</s>"):
        backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])
    return backend


def texts(backend, ids):
    return [backend.id_to_token(token) for token in ids]


@pytest.mark.parametrize("text", ["a</s>b", "a\uff1c/s\uff1eb"], ids=["plain", "full-width"])
def test_a_model_that_would_spell_a_special_token_spells_its_letters(folding_backend, text):
    encoder = LiteralEncoder(folding_backend, unk="<unk>")
    ids = encoder.encode(text, ((0, len(text)),))
    assert texts(folding_backend, ids) == ["▁", "a", "<", "/", "s", ">", "b"]


def test_the_unknown_token_may_come_of_plain_text(folding_backend):
    encoder = LiteralEncoder(folding_backend, unk="<unk>")
    assert texts(folding_backend, encoder.encode("aλb", ())) == ["▁", "a", "<unk>", "b"]


def test_names_outside_the_spans_are_tokens(folding_backend):
    encoder = LiteralEncoder(folding_backend, unk="<unk>")
    ids = encoder.encode("</s>a</s></s>", ((5, 9),))
    assert texts(folding_backend, ids) == ["</s>", "▁", "a", "<", "/", "s", ">", "</s>"]


def test_a_name_that_half_touches_a_span_is_text(folding_backend):
    encoder = LiteralEncoder(folding_backend, unk="<unk>")
    assert folding_backend.token_to_id("</s>") not in encoder.encode("a</s>b", ((4, 6),))


def test_text_without_names_needs_no_second_tokenizer(folding_backend):
    encoder = LiteralEncoder(folding_backend, unk="<unk>")
    encoder.encode("ab</s>", ())
    encoder.encode("ab", ((0, 2),))
    assert encoder._swap is None
    encoder.encode("ab</s>", ((0, 6),))
    assert encoder._swap is not None


def test_two_encoders_have_different_placeholders(folding_backend):
    """What nobody can guess, nobody can write."""
    swaps = [LiteralEncoder(folding_backend, unk=None)._ready_swap() for _ in range(2)]
    assert swaps[0].placeholders["</s>"] != swaps[1].placeholders["</s>"]


def test_a_vocabulary_without_special_tokens_is_all_text(folding_backend):
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    assert LiteralEncoder(backend, unk=None).encode("ab", ((0, 2),)) == (0, 1)


class Recorder:
    """A tokenizer that notes how it is called."""

    def __init__(self, backend):
        self.backend = backend
        self.calls = []

    def encode(self, text, **more):
        self.calls.append("encode")
        return self.backend.encode(text, **more)

    def encode_batch_fast(self, texts, **more):
        self.calls.append("encode_batch_fast")
        return self.backend.encode_batch_fast(texts, **more)


@pytest.mark.parametrize("characters", [LONG_TEXT_CHARACTERS - 1, LONG_TEXT_CHARACTERS, 50_000])
def test_a_long_text_is_encoded_by_the_call_that_lets_other_threads_go_on(
    byte_level_backend, characters
):
    text = ("a word, <|im_end|> é🙂 " * characters)[:characters]
    recorder = Recorder(byte_level_backend)
    ids = token_ids(recorder, text)
    assert ids == byte_level_backend.encode(text, add_special_tokens=False).ids
    is_long = characters >= LONG_TEXT_CHARACTERS
    assert recorder.calls == ["encode_batch_fast" if is_long else "encode"]


@pytest.mark.parametrize("parses", [False, True])
def test_a_long_text_has_the_ids_that_the_other_call_gives(byte_level, parses, monkeypatch):
    text = "a word, <|im_end|> é🙂 " * 1000
    ids = byte_level.encode(text, parse_special=parses)
    monkeypatch.setattr("engine.text.literals.LONG_TEXT_CHARACTERS", 10**9)
    assert byte_level.encode(text, parse_special=parses) == ids
