"""A text outside the prompt that drafts may be copied from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from engine.lookup.ngram_index import NgramIndex
from engine.params import SpeculationParams


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """A named text that drafts may come from and the model never sees.

    Indexed once, then shared by every sequence that may read it; never changed.
    """

    name: str
    index: NgramIndex

    @classmethod
    def from_tokens(cls, name: str, tokens: Iterable[int], params: SpeculationParams) -> Self:
        """Index a text for n-grams in the range of ``params``."""
        index = NgramIndex(ngram_min=params.ngram_min, ngram_max=params.ngram_max, tokens=tokens)
        index.extend()
        return cls(name, index)
