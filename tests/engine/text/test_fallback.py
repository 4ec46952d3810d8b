"""Tokenizers of folders without ``tokenizer.json``."""

import io
import json
import sys

import pytest

from engine.errors import ModelFileError, UnsupportedModel
from engine.text.fallback import load_converted
from engine.text.tokenizer import Tokenizer


def test_a_folder_without_any_vocabulary_says_what_is_missing(tmp_path):
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: is missing"):
        load_converted(tmp_path)


def test_without_transformers_the_error_says_what_to_type(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedModel, match="pip install transformers sentencepiece"):
        load_converted(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_sentencepiece_folder_is_converted(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("transformers")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog"] * 50),
        model_writer=model,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("the quick fox 日本")) == "the quick fox 日本"
    assert tokenizer.eos_ids == {tokenizer.token_id("</s>")}
