"""The vocabulary a GGUF file carries: its entries, their kinds, and the ids with a meaning."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelFileError, UnsupportedModel
from engine.models.gguf.metadata import GgufMetadata


class TokenKind(IntEnum):
    """What an entry is, by GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    """Never a part of ordinary text; hidden when text is shown."""

    USER_DEFINED = 4
    """Added text that stays one token and is shown."""

    UNUSED = 5
    BYTE = 6


class TokenizerStyle(IntEnum):
    """The two kinds of tokenizer read here."""

    BYTE_LEVEL = 0
    """Byte-level BPE as of GPT-2, with merges."""

    SENTENCE_PIECE = 1
    """SentencePiece BPE with scores and byte fallback."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The entries of a tokenizer and what they are."""

    style: TokenizerStyle
    pre_tokenizer: str
    """GGUF's name for the way text is cut before merging; "" where the file says nothing."""

    tokens: tuple[str, ...]
    kinds: NDArray[np.int64]
    """int64[tokens]: ``TokenKind`` numbers."""

    scores: NDArray[np.float64] | None
    """float64[tokens]; SentencePiece only."""

    merges: tuple[str, ...]
    """Pairs joined by one space, best first; byte-level only."""

    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    stop_ids: tuple[int, ...]
    """Every id that ends an answer, ``eos_id`` first."""

    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool


_STOP_TEXTS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "</s>")
)
"""Control tokens that end a turn or a document, whatever the file's ids say; published checkpoints
list them in generation_config.json, which GGUF does not carry."""

_BOS_BY_DEFAULT = frozenset(("llama-bpe", "llama3", "llama-v3", "tekken"))
"""Byte-level tokenizers that begin with BOS unless the file says otherwise."""


MAX_TOKEN_CHARACTERS = 2048
"""Of one entry; the longest of published vocabularies are runs of some hundred spaces."""
MAX_MERGE_WORK = 200_000_000
"""Most squared characters of all entries: merges are rebuilt from every cut of every entry. A
vocabulary of 256,000 entries has 20 million."""


def read_vocabulary(metadata: GgufMetadata, vocab_size: int) -> Vocabulary:
    """The vocabulary in ``metadata``.

    Args:
        metadata: the file's key-value part.
        vocab_size: rows of the embedding; the vocabulary may be smaller, never larger.

    Raises:
        ModelFileError: entries are missing or contradict each other.
        UnsupportedModel: a kind of tokenizer not read here.
    """
    style = _style(metadata)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    if not 0 < len(tokens) <= vocab_size:
        raise ModelFileError(
            metadata.path,
            f"'tokenizer.ggml.tokens' has {len(tokens)} entries, the embedding {vocab_size} rows",
        )
    _check_lengths(tokens, metadata.path)
    kinds = np.full(len(tokens), TokenKind.NORMAL, np.int64)
    if "tokenizer.ggml.token_type" in metadata:
        kinds = _kinds(metadata, len(tokens))
    is_pieces = style is TokenizerStyle.SENTENCE_PIECE
    default = 1 if is_pieces else None
    bos_id = _token_id(metadata, "bos_token_id", tokens, default)
    eos_id = _token_id(metadata, "eos_token_id", tokens, None if default is None else 2)
    pre_tokenizer = metadata.text("tokenizer.ggml.pre", "")
    begins = is_pieces or pre_tokenizer in _BOS_BY_DEFAULT
    return Vocabulary(
        style=style,
        pre_tokenizer=pre_tokenizer,
        tokens=tokens,
        kinds=kinds,
        scores=_scores(metadata, len(tokens)) if is_pieces else None,
        merges=() if is_pieces else metadata.texts("tokenizer.ggml.merges"),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=_token_id(metadata, "unknown_token_id", tokens, 0 if is_pieces else None),
        padding_id=_token_id(metadata, "padding_token_id", tokens, None),
        stop_ids=_stop_ids(metadata, tokens, kinds, eos_id),
        adds_bos=bos_id is not None
        and metadata.flag("tokenizer.ggml.add_bos_token", default=begins),
        adds_eos=metadata.flag("tokenizer.ggml.add_eos_token", default=False),
        adds_space_prefix=metadata.flag("tokenizer.ggml.add_space_prefix", default=is_pieces),
    )


def _check_lengths(tokens: tuple[str, ...], path: Path) -> None:
    """Refuse what would make building the tokenizer take hours."""
    longest = max(tokens, key=len)
    if len(longest) > MAX_TOKEN_CHARACTERS:
        raise ModelFileError(
            path, f"'tokenizer.ggml.tokens' has an entry of {len(longest)} characters"
        )
    if sum(len(token) ** 2 for token in tokens) > MAX_MERGE_WORK:
        raise ModelFileError(path, "'tokenizer.ggml.tokens' has too many long entries")


def _style(metadata: GgufMetadata) -> TokenizerStyle:
    model = metadata.text("tokenizer.ggml.model")
    match model:
        case "gpt2":
            return TokenizerStyle.BYTE_LEVEL
        case "llama":
            return TokenizerStyle.SENTENCE_PIECE
        case _:
            raise UnsupportedModel(
                f"{metadata.path}: tokenizers of the kind {model!r} ('tokenizer.ggml.model') "
                "are not read here"
            )


def _column(metadata: GgufMetadata, key: str, length: int) -> NDArray[np.generic]:
    column = metadata.numbers(key)
    if len(column) != length:
        raise ModelFileError(
            metadata.path, f"metadata key {key!r} has {len(column)} entries for {length} tokens"
        )
    return column


def _kinds(metadata: GgufMetadata, length: int) -> NDArray[np.int64]:
    kinds = _column(metadata, "tokenizer.ggml.token_type", length)
    if not np.issubdtype(kinds.dtype, np.integer):
        raise ModelFileError(metadata.path, "'tokenizer.ggml.token_type' is not of whole numbers")
    return kinds.astype(np.int64)


def _scores(metadata: GgufMetadata, length: int) -> NDArray[np.float64]:
    scores = _column(metadata, "tokenizer.ggml.scores", length).astype(np.float64)
    if not np.isfinite(scores).all():
        raise ModelFileError(metadata.path, "'tokenizer.ggml.scores' holds no finite numbers")
    return scores


def _token_id(
    metadata: GgufMetadata, name: str, tokens: tuple[str, ...], default: int | None
) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return default if default is not None and default < len(tokens) else None
    token_id = metadata.integer(key)
    if token_id < len(tokens):
        return token_id
    # Some converters write "none" as the largest number of the type.
    if token_id == 0xFFFFFFFF:
        return None
    raise ModelFileError(
        metadata.path, f"metadata key {key!r} is {token_id}, beyond the {len(tokens)} tokens"
    )


def _stop_ids(
    metadata: GgufMetadata, tokens: tuple[str, ...], kinds: NDArray[np.int64], eos_id: int | None
) -> tuple[int, ...]:
    declared: Iterable[int | None] = (
        eos_id,
        _token_id(metadata, "eot_token_id", tokens, None),
        _token_id(metadata, "eom_token_id", tokens, None),
    )
    known = (
        token_id
        for token_id in np.flatnonzero(kinds == TokenKind.CONTROL).tolist()
        if tokens[token_id] in _STOP_TEXTS
    )
    ids = [token_id for token_id in declared if token_id is not None]
    return tuple(dict.fromkeys([*ids, *known]))
