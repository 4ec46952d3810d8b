"""Whether a request may use prompt lookup: one rule, asked in one order, with named reasons.

``generate`` and ``chat`` turn a reason into an error; a server logs it and decodes plainly.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import InvalidParams


class Refusal(StrEnum):
    """Why a request decodes without prompt lookup, in the order the reasons are asked.

    The value is a stable name for logs; ``sentence`` is for people.
    """

    MULTIMODAL = "multimodal"
    STRUCTURED_OUTPUT = "structured-output"
    LOGPROBS = "logprobs"
    EXTENDED_CHAIN = "extended-chain"
    DRAFTER_NEEDS_MODEL = "drafter-needs-model"
    SAMPLER_FEEDBACK = "sampler-feedback"
    NO_STORAGE = "no-storage"
    NOT_TRIMMABLE = "not-trimmable"
    NOT_BATCHABLE = "not-batchable"
    MODEL_OWNED_LAYOUT = "model-owned-layout"
    INEXACT_TRIM = "inexact-trim"
    DRAFTER_FAILED = "drafter-failed"
    """Not asked here: what a server reports when starting the drafter raised."""

    @property
    def sentence(self) -> str:
        """The reason for people: what stands in the way."""
        return _SENTENCES[self]


_SENTENCES = {
    Refusal.MULTIMODAL: "the request carries images or sound",
    Refusal.STRUCTURED_OUTPUT: "the request constrains its output (a grammar or JSON schema)",
    Refusal.LOGPROBS: "the request asks for log-probabilities",
    Refusal.EXTENDED_CHAIN: "the request's sampler runs one row at a time "
    "(mirostat, dynamic temperature or min-keep)",
    Refusal.DRAFTER_NEEDS_MODEL: "this drafter needs more than the tokens",
    Refusal.SAMPLER_FEEDBACK: "each mirostat draw changes the next one, "
    "so that several tokens cannot be verified at once; drop --mirostat",
    Refusal.NO_STORAGE: "this model keeps no KV cache",
    Refusal.NOT_TRIMMABLE: "this model's KV cache cannot drop rejected tokens "
    "(recurrent state, or a sliding window that is full)",
    Refusal.NOT_BATCHABLE: "this model keeps state outside its KV cache",
    Refusal.MODEL_OWNED_LAYOUT: "this model lays out its KV cache itself",
    Refusal.INEXACT_TRIM: "dropping tokens does not undo them exactly in this model's KV cache",
    Refusal.DRAFTER_FAILED: "the drafter could not start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What the rule looks at, as plain statements about one request on one model."""

    is_multimodal: bool = False
    is_structured: bool = False
    """A grammar, schema or mask decides which tokens are legal."""
    wants_logprobs: bool = False
    has_extended_chain: bool = False
    drafts_from_tokens_only: bool = True
    has_feedback: bool = False
    """``SamplingParams.has_feedback``."""
    has_storage: bool = True
    """Whether the sequence has any KV storage outside the model."""
    is_trimmable: bool = True
    """Whether its rows can be cut back by ``max_draft`` tokens now; a sliding window may be, until
    it is full."""
    is_batchable: bool = True
    """Whether all of the model's state is in that storage."""
    has_model_owned_layout: bool = False
    trims_exactly: bool = True
    """Whether cutting back leaves what was there before the tokens came."""


def refusal(facts: RequestFacts) -> Refusal | None:
    """The first reason against prompt lookup in ``generate`` and ``chat``, or None."""
    return _first(_shared(facts))


def server_refusal(facts: RequestFacts) -> Refusal | None:
    """The first reason against prompt lookup in a batch, or None.

    Masks, log-probabilities and the extended chain could be verified position by position, but that
    would hold the batch up.
    """
    extra = (
        (facts.is_multimodal, Refusal.MULTIMODAL),
        (facts.is_structured, Refusal.STRUCTURED_OUTPUT),
        (facts.wants_logprobs, Refusal.LOGPROBS),
        (facts.has_extended_chain, Refusal.EXTENDED_CHAIN),
    )
    return _first((*extra, *_shared(facts)))


def require_eligible(facts: RequestFacts) -> None:
    """Pass what may use prompt lookup in ``generate`` and ``chat``.

    Raises:
        InvalidParams: it may not; the message names the reason.
    """
    if reason := refusal(facts):
        raise InvalidParams("prompt_lookup", f"is not possible here: {reason.sentence}")


def _shared(facts: RequestFacts) -> tuple[tuple[bool, Refusal], ...]:
    return (
        (not facts.drafts_from_tokens_only, Refusal.DRAFTER_NEEDS_MODEL),
        (facts.has_feedback, Refusal.SAMPLER_FEEDBACK),
        (not facts.has_storage, Refusal.NO_STORAGE),
        (not facts.is_trimmable, Refusal.NOT_TRIMMABLE),
        (not facts.is_batchable, Refusal.NOT_BATCHABLE),
        (facts.has_model_owned_layout, Refusal.MODEL_OWNED_LAYOUT),
        (not facts.trims_exactly, Refusal.INEXACT_TRIM),
    )


def _first(checks: Iterable[tuple[bool, Refusal]]) -> Refusal | None:
    return next((reason for applies, reason in checks if applies), None)
