"""How an answer of a conversation is sampled when nobody says how."""

from collections.abc import Mapping
from typing import Any

from engine.params import SamplingParams

TEMPERATURE = 0.7
TOP_P = 0.95
"""Where neither user nor model say anything."""


def chat_sampling(recommended: Mapping[str, float]) -> SamplingParams:
    """What a model's authors recommend, and values that suit most models where they do not.

    Args:
        recommended: sampling parameters by name, as `LoadedModel.generation` has them.
    """
    values: dict[str, Any] = {"temperature": TEMPERATURE, "top_p": TOP_P, **recommended}
    return SamplingParams(**values)
