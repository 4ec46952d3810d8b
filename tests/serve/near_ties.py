"""Judges two greedy answers: the same, or parted where two tokens were as good as equal."""

import logging
from dataclasses import dataclass
from typing import Any

LOG = logging.getLogger(__name__)

NEAR_TIE = 1e-3
"""Log-probabilities this close may change places in a batch of another width."""


@dataclass
class Spoken:
    """A choice that came with two log-probabilities for each token."""

    text: str
    tokens: list[bytes]
    gaps: list[float]
    """How far apart the best two tokens of each place were."""


def spoken(choice: dict[str, Any]) -> Spoken:
    """What a chat's choice says; it was asked for with ``top_logprobs`` of 2."""
    places = choice["logprobs"]["content"]
    best = [[one["logprob"] for one in place["top_logprobs"]] for place in places]
    return Spoken(
        choice["message"]["content"],
        [bytes(place["bytes"]) for place in places],
        [first - second for first, second in best],
    )


def assert_same(other: Spoken, alone: Spoken) -> None:
    """The same tokens up to a near-tie, which is shown."""
    for at, (ours, theirs) in enumerate(zip(other.tokens, alone.tokens, strict=False)):
        if ours != theirs:
            LOG.warning("near-tie? token %d: %r, alone %r: %.1e", at, ours, theirs, alone.gaps[at])
            assert alone.gaps[at] < NEAR_TIE, (other.text, alone.text)
            return
    assert len(other.tokens) == len(alone.tokens)
    assert other.text == alone.text


def assert_text_same(text: str, alone: Spoken) -> None:
    """The same for an answer whose tokens were not told."""
    told = b""
    for at, token in enumerate(alone.tokens):
        told += token
        if not text.encode().startswith(told):
            LOG.warning("near-tie? token %d in %r: %.1e", at, text, alone.gaps[at])
            assert alone.gaps[at] < NEAR_TIE, (text, alone.text)
            return
    assert text == alone.text
