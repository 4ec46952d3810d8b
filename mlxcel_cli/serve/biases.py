"""Reads what a request adds to tokens' logits, in OpenAI's and in llama.cpp's spelling."""

import math
from collections.abc import Mapping, Sequence

from engine.errors import InvalidParams
from mlxcel_cli.sampling_options import Bias, token_biases
from mlxcel_cli.serve.served_model import ServedModel

Biases = Mapping[str, float] | Sequence[Sequence[int | float | str | bool]]
"""Token id, as a string, to bias; or pairs of a token id or a text and a bias, or false: never."""


def read_biases(written: Biases, model: ServedModel) -> dict[int, float]:
    """Token id to bias.

    Args:
        written: an object of ids to numbers, or a list of pairs.
        model: whose tokens are meant.

    Raises:
        InvalidParams: an id is no token of the model, or a pair is none.
    """
    if isinstance(written, Mapping):
        return {_id_of(key, model): value for key, value in written.items()}
    return token_biases([_pair(one, model) for one in written], model.tokenizer.encode)


def _id_of(key: str, model: ServedModel) -> int:
    vocab_size = model.facts.vocab_size
    token = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else -1
    if not 0 <= token < vocab_size:
        raise InvalidParams(
            "logit_bias", f"{key!r} is not a token id below {vocab_size}, as a string"
        )
    return token


def _pair(one: Sequence[int | float | str | bool], model: ServedModel) -> Bias:
    token, value = one if len(one) == 2 else (True, True)
    is_token = isinstance(token, int | str) and not isinstance(token, bool)
    if not is_token or value is True or isinstance(value, str):
        raise InvalidParams("logit_bias", "must hold pairs of a token id or text and a number")
    assert isinstance(token, int | str)
    if isinstance(token, int) and not 0 <= token < model.facts.vocab_size:
        raise InvalidParams(
            "logit_bias", f"token id {token} is outside this model's {model.facts.vocab_size}"
        )
    return token, -math.inf if value is False else float(value)
