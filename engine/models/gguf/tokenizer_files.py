"""The tokenizer of an mlx-lm folder, made from a GGUF vocabulary.

``tokenizer.json`` is the format of the ``tokenizers`` library. A byte-level vocabulary brings its
merges; a SentencePiece one has scores instead, from which the merges are rebuilt: of all pairs of
entries that join to an entry, the better the joined entry's score the earlier.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.metadata import GgufMetadata
from engine.models.gguf.vocabulary import TokenizerStyle, TokenKind, Vocabulary

Json = dict[str, object]

SPACE = "\u2581"
"""SentencePiece's visible space."""


def tokenizer_json(vocabulary: Vocabulary, path: Path) -> Json:
    """The content of ``tokenizer.json``.

    Raises:
        ModelFileError: the merges do not belong to the entries.
        UnsupportedModel: text would have to be cut in a way not known here.
    """
    parts = (
        _byte_level(vocabulary, path)
        if vocabulary.style is TokenizerStyle.BYTE_LEVEL
        else _sentence_piece(vocabulary)
    )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added_tokens(vocabulary)),
        **parts,
        "post_processor": _post_processor(vocabulary),
    }


def tokenizer_config(metadata: GgufMetadata, vocabulary: Vocabulary, context_tokens: int) -> Json:
    """The content of ``tokenizer_config.json``, the chat template included."""
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocabulary.adds_bos,
        "add_eos_token": vocabulary.adds_eos,
    }
    named = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "unk_token": vocabulary.unknown_id,
        "pad_token": vocabulary.padding_id,
    }
    for name, token_id in named.items():
        config[name] = None if token_id is None else vocabulary.tokens[token_id]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata.text("tokenizer.chat_template")
    return config


def generation_config(vocabulary: Vocabulary) -> Json:
    """The content of ``generation_config.json``: the ids that begin and end a text."""
    config: Json = {}
    if vocabulary.bos_id is not None:
        config["bos_token_id"] = vocabulary.bos_id
    if vocabulary.stop_ids:
        config["eos_token_id"] = list(vocabulary.stop_ids)
    if vocabulary.padding_id is not None:
        config["pad_token_id"] = vocabulary.padding_id
    return config


def _added_tokens(vocabulary: Vocabulary) -> Iterator[Json]:
    special = {TokenKind.CONTROL, TokenKind.UNKNOWN}
    marks = {vocabulary.bos_id, vocabulary.eos_id, *vocabulary.stop_ids}
    for token_id, kind in enumerate(vocabulary.kinds.tolist()):
        is_special = kind in special or token_id in marks
        if (is_special or kind == TokenKind.USER_DEFINED) and vocabulary.tokens[token_id]:
            yield {
                "id": token_id,
                "content": vocabulary.tokens[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": is_special,
            }


def _entries(vocabulary: Vocabulary) -> dict[str, int]:
    """Entry to id; of two equal entries the first."""
    entries: dict[str, int] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        entries.setdefault(token, token_id)
    return entries


def _post_processor(vocabulary: Vocabulary) -> Json | None:
    """What frames a text with BOS or EOS, where the file asks for it."""
    before = [vocabulary.bos_id] if vocabulary.adds_bos else []
    after = [vocabulary.eos_id] if vocabulary.adds_eos else []
    marks = {vocabulary.tokens[mark]: mark for mark in (*before, *after) if mark is not None}
    if not marks:
        return None

    def frame(sequence: str, type_id: int) -> list[Json]:
        def special(mark: int | None) -> list[Json]:
            if mark is None:
                return []
            return [{"SpecialToken": {"id": vocabulary.tokens[mark], "type_id": type_id}}]

        head = [piece for mark in before for piece in special(mark)]
        tail = [piece for mark in after for piece in special(mark)]
        return [*head, {"Sequence": {"id": sequence, "type_id": type_id}}, *tail]

    return {
        "type": "TemplateProcessing",
        "single": frame("A", 0),
        "pair": [*frame("A", 0), *frame("B", 1)],
        "special_tokens": {
            text: {"id": text, "ids": [mark], "tokens": [text]} for text, mark in marks.items()
        },
    }


def _model(entries: dict[str, int], merges: list[list[str]], **changes: object) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": entries,
        "merges": merges,
        **changes,
    }


# Regular expressions that cut text before merging, from the published tokenizer.json files.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MARKS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_MARKS_AND_SPACE}"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LLAMA3_NAMES = frozenset(
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx", "chatglm-bpe")
)
_QWEN2_NAMES = frozenset(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"))
_DIGIT_NAMES = frozenset(
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
)
_GPT2_NAMES = frozenset(("", "default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"))


def guesses_pre_tokenizer(vocabulary: Vocabulary) -> bool:
    """Whether the file does not say how text is cut, so that GPT-2's way is taken."""
    is_byte_level = vocabulary.style is TokenizerStyle.BYTE_LEVEL
    return is_byte_level and vocabulary.pre_tokenizer in ("", "default")


def _pre_tokenizer(name: str, path: Path) -> Json:
    if name in _GPT2_NAMES:
        return _bytes_of_words(use_regex=True)
    if name in _DIGIT_NAMES:
        digits: Json = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, _bytes_of_words(use_regex=True)]}
    for names, pattern in ((_LLAMA3_NAMES, _LLAMA3), (_QWEN2_NAMES, _QWEN2), ({"tekken"}, _TEKKEN)):
        if name in names:
            split: Json = {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            }
            return {"type": "Sequence", "pretokenizers": [split, _bytes_of_words(use_regex=False)]}
    raise UnsupportedModel(
        f"{path}: the pre-tokenizer {name!r} ('tokenizer.ggml.pre') is not known here"
    )


def _bytes_of_words(*, use_regex: bool) -> Json:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _byte_level(vocabulary: Vocabulary, path: Path) -> Json:
    entries = _entries(vocabulary)
    merges = [_pair(merge, entries, path) for merge in vocabulary.merges]
    keeps_whole_words = vocabulary.pre_tokenizer in _LLAMA3_NAMES | {"tekken"}
    return {
        # Published Qwen tokenizers compose characters first; llama.cpp does not.
        "normalizer": {"type": "NFC"} if vocabulary.pre_tokenizer == "qwen2" else None,
        "pre_tokenizer": _pre_tokenizer(vocabulary.pre_tokenizer, path),
        "decoder": _bytes_of_words(use_regex=True),
        "model": _model(entries, merges, ignore_merges=keeps_whole_words),
    }


def _pair(merge: str, entries: dict[str, int], path: Path) -> list[str]:
    # An entry may itself begin with a space, so the separator is looked for after it.
    at = merge.find(" ", 1)
    left, right = merge[:at], merge[at + 1 :]
    if at < 0 or not right or not {left, right, left + right} <= entries.keys():
        raise ModelFileError(
            path, f"'tokenizer.ggml.merges' joins {merge!r}, which is not in the vocabulary"
        )
    return [left, right]


def _sentence_piece(vocabulary: Vocabulary) -> Json:
    entries = _entries(vocabulary)
    unknown = vocabulary.unknown_id
    to_spaces: Json = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    from_spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders: list[Json] = [to_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizer = from_spaces
    if vocabulary.adds_space_prefix:
        prepend: Json = {"type": "Prepend", "prepend": SPACE}
        normalizer = {"type": "Sequence", "normalizers": [prepend, from_spaces]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(
            entries,
            _rebuilt_merges(vocabulary, entries),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
        ),
    }


def _rebuilt_merges(vocabulary: Vocabulary, entries: dict[str, int]) -> list[list[str]]:
    assert vocabulary.scores is not None
    scores = vocabulary.scores.tolist()
    # Only ordinary entries come from merging: added text is cut out before, bytes come after.
    ordinary = np.flatnonzero(vocabulary.kinds == TokenKind.NORMAL).tolist()
    pairs: list[tuple[float, int, int, str, str]] = []
    for token_id in ordinary:
        token = vocabulary.tokens[token_id]
        for cut in range(1, len(token)):
            left, right = entries.get(token[:cut]), entries.get(token[cut:])
            if left is not None and right is not None:
                pairs.append((-scores[token_id], left, right, token[:cut], token[cut:]))
    pairs.sort()
    return [[left, right] for _, _, _, left, right in pairs]
