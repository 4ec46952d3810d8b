"""Small tokenizers of the three common kinds, built here so that no file is needed."""

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from engine.text.tokenizer import Tokenizer

CORPUS = [
    "Hello world, the quick brown fox says <b>hi</b>. " * 8,
    "日本語 のテキスト 😀 user assistant é " * 8,
]


def special(text: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(text, special=True, normalized=False)


@pytest.fixture(scope="session")
def byte_level_backend() -> tokenizers.Tokenizer:
    """ChatML-like byte-level BPE; ``<think>`` is added but not special."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([tokenizers.AddedToken("<think>", special=False, normalized=False)])
    return backend


@pytest.fixture(scope="session")
def byte_level(byte_level_backend) -> Tokenizer:
    return Tokenizer(byte_level_backend, {"eos_token": "<|im_end|>"})


def sentencepiece_vocabulary() -> list[str]:
    characters = sorted(
        {character for text in CORPUS[:1] for character in text if character != " "}
    )
    return [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{value:02X}>" for value in range(256)),
        "▁",
        *characters,
        "▁t",
        "he",
        "▁the",
        "ll",
        "▁▁",
        "▁▁▁▁",
    ]


@pytest.fixture(scope="session")
def sentencepiece_backend() -> tokenizers.Tokenizer:
    """Llama-2-like BPE with byte fallback, a prepended space and a BOS."""
    vocabulary = {token: index for index, token in enumerate(sentencepiece_vocabulary())}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("l", "l"), ("▁", "▁"), ("▁▁", "▁▁")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    return backend


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_backend) -> Tokenizer:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
    }
    return Tokenizer(sentencepiece_backend, config)


@pytest.fixture(scope="session")
def unigram() -> Tokenizer:
    """A Unigram model with Metaspace, which spells ``</s>`` as one piece if it is let to."""
    characters = sorted({character for text in CORPUS for character in text if character != " "})
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁hi", -1.0)]
    vocabulary += [(character, -3.0) for character in characters]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([special("<unk>"), special("</s>")])
    return Tokenizer(backend, {"eos_token": "</s>", "unk_token": "<unk>"})


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    """A kind whose decoder has no bytes per token."""
    words = ["[UNK]", "[SEP]", "hello", "world", "##s", "##ly", ",", "quick"]
    backend = tokenizers.Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens([special("[SEP]")])
    return Tokenizer(backend, {"eos_token": "[SEP]"})


@pytest.fixture(params=["byte_level", "sentencepiece", "unigram", "wordpiece"])
def any_tokenizer(request) -> Tokenizer:
    return request.getfixturevalue(request.param)
