"""Loads tokenizers of folders without ``tokenizer.json`` (SentencePiece only), by transformers."""

from pathlib import Path

import tokenizers

from engine.errors import ModelFileError, UnsupportedModel


def load_converted(folder: Path) -> tokenizers.Tokenizer:
    """Convert a folder's tokenizer; imports transformers, which takes a second or two.

    Raises:
        ModelFileError: the folder holds no tokenizer at all.
        UnsupportedModel: transformers is missing or knows no conversion.
    """
    sources = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json")
    if not any((folder / name).is_file() for name in sources):
        raise ModelFileError(folder / "tokenizer.json", "is missing")
    try:
        # Here and not above: no other model should pay for it.
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UnsupportedModel(
            f"{folder} has no tokenizer.json, and transformers, which could convert its "
            "tokenizer, is not installed: pip install transformers sentencepiece"
        ) from error
    try:
        converted = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (ImportError, OSError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedModel(
            f"{folder} has no tokenizer.json, and converting its tokenizer failed: {error}"
        ) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise UnsupportedModel(f"{folder} has no tokenizer.json and no fast form of its tokenizer")
    return backend
