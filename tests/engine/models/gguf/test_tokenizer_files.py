import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.metadata import GgufMetadata
from engine.models.gguf.reader import open_gguf
from engine.models.gguf.tokenizer_files import (
    generation_config,
    guesses_pre_tokenizer,
    tokenizer_config,
    tokenizer_json,
)
from engine.models.gguf.vocabulary import read_vocabulary
from tests.engine.models.gguf.write_gguf import BYTE_TOKENS, BYTE_VOCABULARY, gguf_bytes

STARTER_TOKENS = Path(__file__).parents[3] / "data" / "starter_tokens.json"
STARTER_LOGITS = Path(__file__).parents[3] / "data" / "starter_logits.json"
SOURCE = Path("m.gguf")


def metadata_of(folder: Path, values) -> GgufMetadata:
    """The values as a file's reader gives them."""
    path = folder / "v.gguf"
    path.write_bytes(gguf_bytes(values, {}))
    with open_gguf(path) as file:
        return file.metadata


def vocabulary_of(folder: Path, values):
    return read_vocabulary(metadata_of(folder, values), vocab_size=1 << 20)


def tokenizer_of(folder: Path, values) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary_of(folder, values), SOURCE)))


@pytest.mark.starter
def test_the_starter_tokenizes_every_reference_text_as_llama_cpp_does(starter_folder):
    tokenizer = Tokenizer.from_file(str(starter_folder / "tokenizer.json"))
    pairs = json.loads(STARTER_TOKENS.read_text())
    differing = [text for text, ids in pairs if tokenizer.encode(text).ids != ids]
    assert len(pairs) > 100
    assert differing == []


@pytest.mark.starter
def test_the_starter_predicts_the_reference_token_at_every_position(starter_folder):
    import mlx.core as mx

    from engine.models.mlxlm import import_mlx_lm

    import_mlx_lm()
    from mlx_lm.utils import load_model

    reference = json.loads(STARTER_LOGITS.read_text())
    logits = load_model(starter_folder)[0](mx.array([reference["ids"]]))[0]
    best = [ids[0] for ids in reference["top5_ids"]]
    assert mx.argmax(logits, axis=-1).tolist() == best


def test_text_goes_through_bytes_and_back(tmp_path):
    tokenizer = tokenizer_of(tmp_path, BYTE_VOCABULARY)
    text = "hello\n wörld 🙂\x00"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("the").tokens == ["t", "he"]


def test_control_tokens_are_special_and_user_defined_ones_are_shown(tmp_path):
    tokenizer = tokenizer_of(tmp_path, BYTE_VOCABULARY)
    ids = tokenizer.encode("<|im_start|>a<tool>").ids
    assert ids == [1, BYTE_TOKENS.index("a"), BYTE_TOKENS.index("<tool>")]
    assert tokenizer.decode(ids) == "a<tool>"


def test_an_eos_that_the_file_calls_ordinary_is_special_all_the_same(tmp_path):
    values = BYTE_VOCABULARY | {"tokenizer.ggml.token_type": [1] * len(BYTE_TOKENS)}
    tokenizer = tokenizer_of(tmp_path, values)
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert tokenizer.decode([2]) == ""


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["I", "'ll", "Ġpay", "Ġ1234", ".", "ĊĊ"]),
        ("smollm", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", ".", "ĊĊ"]),
        ("llama-bpe", ["I", "'ll", "Ġpay", "Ġ", "123", "4", ".ĊĊ"]),
        ("qwen2", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", ".ĊĊ"]),
        ("tekken", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", ".ĊĊ"]),
    ],
)
def test_text_is_cut_as_the_named_pre_tokenizer_cuts_it(tmp_path, name, pieces):
    tokenizer = tokenizer_of(tmp_path, BYTE_VOCABULARY | {"tokenizer.ggml.pre": name})
    cut = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("I'll pay 1234.\n\n")]
    assert cut == pieces


def test_words_that_are_entries_stay_whole_where_llama_3_keeps_them(tmp_path):
    # "ell" is an entry that no merge makes.
    values = BYTE_VOCABULARY | {
        "tokenizer.ggml.tokens": [*BYTE_TOKENS, "ell"],
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 257, 4, 1],
        "tokenizer.ggml.add_bos_token": False,
    }
    llama3 = tokenizer_of(tmp_path, values | {"tokenizer.ggml.pre": "llama-bpe"})
    assert llama3.encode("ell").tokens == ["ell"]
    assert tokenizer_of(tmp_path, values).encode("ell").tokens == ["e", "l", "l"]


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path):
    vocabulary = vocabulary_of(tmp_path, BYTE_VOCABULARY | {"tokenizer.ggml.pre": "klingon"})
    with pytest.raises(UnsupportedModel, match="'klingon'"):
        tokenizer_json(vocabulary, SOURCE)


@pytest.mark.parametrize(("pre", "guesses"), [("", True), ("default", True), ("gpt-2", False)])
def test_a_pre_tokenizer_that_is_not_named_is_guessed(tmp_path, pre, guesses):
    vocabulary = vocabulary_of(tmp_path, BYTE_VOCABULARY | {"tokenizer.ggml.pre": pre})
    assert guesses_pre_tokenizer(vocabulary) is guesses


@pytest.mark.parametrize("merge", ["x", "q zz", "he ", " he", "h  e", "a b"])
def test_merges_outside_the_vocabulary_are_an_error_that_names_them(tmp_path, merge):
    vocabulary = vocabulary_of(tmp_path, BYTE_VOCABULARY | {"tokenizer.ggml.merges": [merge]})
    with pytest.raises(ModelFileError, match=r"'tokenizer\.ggml\.merges' joins"):
        tokenizer_json(vocabulary, SOURCE)


def test_bos_and_eos_frame_a_text_where_the_file_asks_for_it(tmp_path):
    asked = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = tokenizer_of(tmp_path, BYTE_VOCABULARY | asked)
    assert tokenizer.encode("a").ids == [1, BYTE_TOKENS.index("a"), 2]
    assert tokenizer.encode("a", add_special_tokens=False).ids == [BYTE_TOKENS.index("a")]
    assert tokenizer_of(tmp_path, BYTE_VOCABULARY).encode("a").ids == [BYTE_TOKENS.index("a")]


def test_the_configuration_carries_template_and_marks(tmp_path):
    metadata = metadata_of(tmp_path, BYTE_VOCABULARY)
    config = tokenizer_config(metadata, read_vocabulary(metadata, 1000), context_tokens=512)
    assert config["chat_template"] == "{{ messages[0].content }}"
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert (config["unk_token"], config["pad_token"]) == (None, None)
    assert config["add_bos_token"] is False
    assert config["model_max_length"] == 512


def test_a_base_model_has_no_template(tmp_path):
    values = {key: value for key, value in BYTE_VOCABULARY.items() if "template" not in key}
    metadata = metadata_of(tmp_path, values)
    assert "chat_template" not in tokenizer_config(metadata, read_vocabulary(metadata, 1000), 8)


def test_without_an_eos_the_generation_configuration_names_none(tmp_path):
    values = BYTE_VOCABULARY | {"tokenizer.ggml.token_type": [1] * len(BYTE_TOKENS)}
    del values["tokenizer.ggml.eos_token_id"]
    assert generation_config(vocabulary_of(tmp_path, values)) == {"bos_token_id": 1}


# SentencePiece: the reference merges the best score first, the leftmost among equals.

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHARACTERS = ["▁", "a", "b", "c", "é"]


def sentence_pieces(scored: dict[str, float], **changes):
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *CHARACTERS, *scored, "<start>", "  "]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(CHARACTERS) + len(scored)), 3, 4]
    scores = [0.0] * 259 + [-1000.0] * len(CHARACTERS) + list(scored.values()) + [0.0, -1000.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        **changes,
    }


def greedy_merge(text: str, scored: dict[str, float]) -> list[str]:
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scored[left + right], at)
            for at, (left, right) in enumerate(pairwise(pieces))
            if left + right in scored
        ]
        if not pairs:
            break
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    known = {*scored, *CHARACTERS}
    return [
        token
        for piece in pieces
        for token in ([piece] if piece in known else [f"<0x{b:02X}>" for b in piece.encode()])
    ]


@given(data=st.data())
def test_rebuilt_merges_cut_words_as_scores_do(tmp_path_factory, data):
    words = st.text("▁abcé", min_size=2, max_size=3)
    entries = data.draw(st.lists(words, unique=True, min_size=1, max_size=12))
    scored = {entry: -float(rank) for rank, entry in enumerate(entries)}
    folder = tmp_path_factory.mktemp("spm")
    tokenizer = tokenizer_of(folder, sentence_pieces(scored))
    # Runs of spaces are added tokens of their own: test_added_spaces_stay_one_token.
    text = re.sub(" +", " ", data.draw(st.text("abcé☃ ", max_size=12)))
    assert tokenizer.encode(text).tokens == greedy_merge(text, scored)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_prefix_space_is_added_and_taken_away_again(tmp_path):
    asked = {"tokenizer.ggml.add_space_prefix": True}
    tokenizer = tokenizer_of(tmp_path, sentence_pieces({"▁a": -1.0}, **asked))
    assert tokenizer.encode("a a").tokens == ["▁a", "▁a"]
    assert tokenizer.decode(tokenizer.encode("a a").ids) == "a a"


def test_added_spaces_stay_one_token(tmp_path):
    tokenizer = tokenizer_of(tmp_path, sentence_pieces({"▁a": -1.0}))
    assert tokenizer.encode("b  a a").tokens == ["b", "  ", "a", "▁a"]
    assert tokenizer.decode(tokenizer.encode("b  a a").ids) == "b  a a"


def test_bytes_outside_the_vocabulary_fall_back_and_come_back(tmp_path):
    tokenizer = tokenizer_of(tmp_path, sentence_pieces({"▁a": -1.0}))
    text = "日本\n\x01🙂"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
