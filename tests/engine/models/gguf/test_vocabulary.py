import numpy as np
import pytest

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.metadata import GgufMetadata
from engine.models.gguf.vocabulary import (
    MAX_TOKEN_CHARACTERS,
    TokenizerStyle,
    read_vocabulary,
)

WORDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ("<s>", "a", "<|im_end|>", "<|eot_id|>"),
    "tokenizer.ggml.token_type": np.array([3, 1, 3, 3], np.int32),
    "tokenizer.ggml.merges": (),
    "tokenizer.ggml.eos_token_id": 2,
}
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ("<unk>", "<s>", "</s>", "a"),
    "tokenizer.ggml.scores": np.zeros(4, np.float32),
}


def vocabulary(values, vocab_size: int = 10):
    return read_vocabulary(GgufMetadata("m.gguf", values), vocab_size)


def test_byte_level_defaults():
    read = vocabulary(WORDS)
    assert read.style is TokenizerStyle.BYTE_LEVEL
    assert (read.bos_id, read.eos_id, read.unknown_id) == (None, 2, None)
    assert (read.adds_bos, read.adds_eos, read.adds_space_prefix) == (False, False, False)


def test_sentence_piece_defaults():
    read = vocabulary(PIECES)
    assert read.style is TokenizerStyle.SENTENCE_PIECE
    assert (read.bos_id, read.eos_id, read.unknown_id) == (1, 2, 0)
    assert (read.adds_bos, read.adds_eos, read.adds_space_prefix) == (True, False, True)


def test_llama_3_begins_with_bos_where_the_file_is_silent():
    read = vocabulary(WORDS | {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 0})
    assert read.adds_bos
    assert not vocabulary(WORDS | {"tokenizer.ggml.pre": "llama-bpe"}).adds_bos


def test_declared_and_well_known_ends_are_stops_eos_first():
    assert vocabulary(WORDS).stop_ids == (2, 3)
    assert vocabulary(WORDS | {"tokenizer.ggml.eot_token_id": 1}).stop_ids == (2, 1, 3)


def test_an_ordinary_word_that_looks_like_an_end_is_no_stop():
    kinds = np.array([3, 1, 3, 1], np.int32)
    assert vocabulary(WORDS | {"tokenizer.ggml.token_type": kinds}).stop_ids == (2,)


def test_the_largest_number_means_no_token():
    assert vocabulary(WORDS | {"tokenizer.ggml.bos_token_id": 0xFFFFFFFF}).bos_id is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (WORDS | {"tokenizer.ggml.eos_token_id": 4}, "eos_token_id' is 4, beyond the 4 tokens"),
        (WORDS | {"tokenizer.ggml.tokens": ()}, "has 0 entries"),
        (WORDS | {"tokenizer.ggml.token_type": np.zeros(3, np.int32)}, "3 entries for 4 tokens"),
        (WORDS | {"tokenizer.ggml.token_type": np.zeros(4, np.float32)}, "not of whole numbers"),
        ({key: WORDS[key] for key in WORDS if "merges" not in key}, "merges' is missing"),
        (PIECES | {"tokenizer.ggml.scores": np.full(4, np.nan, np.float32)}, "no finite numbers"),
        ({key: PIECES[key] for key in PIECES if "scores" not in key}, "scores' is missing"),
    ],
)
def test_a_contradiction_is_an_error_that_names_the_key(values, message):
    with pytest.raises(ModelFileError, match=message):
        vocabulary(values)


def test_more_entries_than_the_embedding_has_rows_are_an_error():
    with pytest.raises(ModelFileError, match="the embedding 3 rows"):
        vocabulary(WORDS, vocab_size=3)


def test_another_kind_of_tokenizer_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'bert'"):
        vocabulary(WORDS | {"tokenizer.ggml.model": "bert"})


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["a" * (MAX_TOKEN_CHARACTERS + 1)], id="one very long entry"),
        pytest.param(["a" * MAX_TOKEN_CHARACTERS] * 50, id="many long entries"),
    ],
)
def test_entries_that_would_take_hours_to_rebuild_merges_from_are_refused(texts):
    tokens = ["<unk>", "<s>", "</s>", *(f"{index}{text}" for index, text in enumerate(texts))]
    tokens = [token[:MAX_TOKEN_CHARACTERS] if len(texts) > 1 else token for token in tokens]
    values = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tuple(tokens)}
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        vocabulary(values, vocab_size=len(tokens))
