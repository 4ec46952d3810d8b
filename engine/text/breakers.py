"""DRY's sequence breakers as token ids.

Source: llama.cpp's DRY sampler, which breaks a repeated sequence at any token whose text holds a
breaker, whatever else the token holds.
"""

from collections.abc import Sequence

from engine.text.tokenizer import Tokenizer


def breaker_ids(tokenizer: Tokenizer, breakers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Every token that contains a breaker, and each breaker's own tokens.

    Args:
        tokenizer: the model's.
        breakers: texts; empty ones are dropped.
    """
    # A lone surrogate, which is in no token, has no UTF-8.
    marks = [text.encode(errors="surrogatepass") for text in breakers if text]
    alone = [
        (token,)
        for token in range(tokenizer.vocab_size)
        if any(mark in piece for mark in marks if (piece := tokenizer.piece_bytes(token)))
    ]
    spelled = [tokenizer.encode(text) for text in breakers if text]
    return tuple(dict.fromkeys([*alone, *(ids for ids in spelled if len(ids) > 1)]))
