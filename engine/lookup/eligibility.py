"""Whether a row may use prompt lookup: one rule for every front end, with named reasons.

Drafts are exact for every sampler that has no feedback: log-probabilities and long chains are
computed position by position, as plain steps compute them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """Why a request decodes without prompt lookup, in the order the reasons are checked.

    The value is a stable name for logs; ``sentence`` is for people.
    """

    STRUCTURED_OUTPUT = "structured-output"
    SAMPLER_FEEDBACK = "sampler-feedback"
    NOT_TRIMMABLE = "not-trimmable"
    KV_CAN_RUN_OUT = "kv-can-run-out"
    """Not checked by `refusal`: a scheduler with a KV budget and preemption decides it."""

    @property
    def sentence(self) -> str:
        """The reason for people: what stands in the way."""
        return _SENTENCES[self]

    @property
    def problem(self) -> str:
        """What messages say of the field that asked for prompt lookup."""
        return f"is not possible here: {self.sentence}"


_SENTENCES = {
    Refusal.STRUCTURED_OUTPUT: "the request constrains its output (a grammar or JSON schema)",
    Refusal.SAMPLER_FEEDBACK: "each mirostat draw changes the next one, "
    "so that several tokens cannot be verified at once; drop --mirostat",
    Refusal.NOT_TRIMMABLE: "this model's KV cache cannot drop rejected tokens "
    "(recurrent state, or a sliding window that is full)",
    Refusal.KV_CAN_RUN_OUT: "with a KV budget and preemption an answer may lose its KV midway",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What the rule looks at, as plain statements about one row on one model."""

    is_structured: bool = False
    """A grammar, schema or mask decides which tokens are legal, and need not know what to say of
    tokens that were only drafted."""
    has_feedback: bool = False
    """``SamplingParams.has_feedback``."""
    is_trimmable: bool = True
    """Whether the row can be cut back by ``max_draft`` tokens now; a sliding window may be, until
    it is full."""


def refusal(facts: RowFacts) -> Refusal | None:
    """The first reason against prompt lookup, or None."""
    if facts.is_structured:
        return Refusal.STRUCTURED_OUTPUT
    if facts.has_feedback:
        return Refusal.SAMPLER_FEEDBACK
    return None if facts.is_trimmable else Refusal.NOT_TRIMMABLE
