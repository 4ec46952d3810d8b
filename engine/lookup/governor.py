"""How many tokens a sequence may draft, from how the rounds before went: graded, gated, fixed.

A governor is a value; each transition returns the next one. ``ask`` moves it forward even when the
ask is retracted afterwards: a rest is counted in asks, not in rounds.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

FIRST_REST_ASKS = 4
LONGEST_REST_ASKS = 32
MISSES_BEFORE_REST = 3
CAUTIOUS_DRAFT = 2
"""A gated governor's draft before it trusts the context, and its shadow probe's length."""
TRUSTING_EMA = 1.5
"""Mean accepted tokens a round from which a gated governor drafts in full."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposal that was found within the budget, and what it is weighed by."""

    agreement: int
    """Tokens before it that equal the end of the context."""
    proposed: int
    """Its tokens; at least 1."""
    is_pipelined: bool = False
    """Whether plain rounds keep a step in flight, which a draft would end."""
    others: int = 0
    """Rows that wait for their next token meanwhile."""


class Governor(Protocol):
    """Decides a sequence's draft budget."""

    @property
    def is_paused(self) -> bool:
        """Whether only evidence, not a count of asks, ends the present pause."""
        ...

    @property
    def probe_tokens(self) -> int:
        """Length of the shadow probe wanted when nothing is drafted; 0: none."""
        ...

    def ask(self) -> tuple[int, Self]:
        """The budget of this round, 0 for a plain one, and the governor after the ask."""
        ...

    def draft_tokens(self, offer: Offer) -> int:
        """How much of a proposal to draft."""
        ...

    def after_verify(self, *, agreement: int, drafted: int, accepted: int) -> Self:
        """The governor after a round that verified a draft of at least one token."""
        ...

    def after_probe(self, *, agreement: int, confirmed: bool) -> Self:
        """The governor after a shadow probe was settled by what was written."""
        ...


@dataclass(frozen=True, slots=True)
class FixedGovernor:
    """The budget is always ``max_draft``."""

    max_draft: int

    @property
    def is_paused(self) -> bool:
        """Never."""
        return False

    @property
    def probe_tokens(self) -> int:
        """None are wanted."""
        return 0

    def ask(self) -> tuple[int, Self]:
        """``max_draft``, whatever came before."""
        return self.max_draft, self

    def draft_tokens(self, offer: Offer) -> int:
        """All of it."""
        return offer.proposed

    def after_verify(self, *, agreement: int, drafted: int, accepted: int) -> Self:  # noqa: ARG002
        """Unchanged."""
        return self

    def after_probe(self, *, agreement: int, confirmed: bool) -> Self:  # noqa: ARG002
        """Unchanged."""
        return self


@dataclass(frozen=True, slots=True)
class GradedGovernor:
    """The budget follows a mean of what was accepted; three misses in a row rest it for a while.

    A rest that was in vain doubles the next one, to at most 32 asks. The mean outlives the rest, so
    the first draft after it is a narrow one.
    """

    max_draft: int
    accepted_ema: float
    misses: int = 0
    resting: int = 0
    """Asks left to answer with 0."""
    next_rest: int = FIRST_REST_ASKS

    @classmethod
    def fresh(cls, max_draft: int) -> Self:
        """The governor of a sequence that has not drafted yet."""
        return cls(max_draft, accepted_ema=float(max_draft))

    @property
    def is_paused(self) -> bool:
        """Never: a rest ends by itself."""
        return False

    @property
    def probe_tokens(self) -> int:
        """None are wanted."""
        return 0

    def ask(self) -> tuple[int, Self]:
        """Twice the mean and two more, within 1 and ``max_draft``; 0 while it rests."""
        if self.resting > 0:
            return 0, replace(self, resting=self.resting - 1)
        # Half away from zero; Python's round() would take the even neighbour.
        wanted = math.floor(2 * self.accepted_ema + 0.5) + 2
        return max(1, min(wanted, self.max_draft)), self

    def draft_tokens(self, offer: Offer) -> int:
        """All of it."""
        return offer.proposed

    def after_verify(self, *, agreement: int, drafted: int, accepted: int) -> Self:  # noqa: ARG002
        """The mean moves half way to ``accepted``; the third miss in a row begins a rest."""
        ema = 0.5 * self.accepted_ema + 0.5 * accepted
        if accepted > 0:
            return replace(self, accepted_ema=ema, misses=0, next_rest=FIRST_REST_ASKS)
        if self.misses + 1 < MISSES_BEFORE_REST:
            return replace(self, accepted_ema=ema, misses=self.misses + 1)
        return replace(
            self,
            accepted_ema=ema,
            misses=0,
            resting=self.next_rest,
            next_rest=min(2 * self.next_rest, LONGEST_REST_ASKS),
        )

    def after_probe(self, *, agreement: int, confirmed: bool) -> Self:  # noqa: ARG002
        """Unchanged."""
        return self


@dataclass(frozen=True, slots=True)
class GatedGovernor:
    """Two tokens until drafts prove themselves, then ``max_draft``; a pause ends by a proof only.

    On probation one miss pauses it, later three in a row. While paused it costs nothing: a shadow
    probe of two tokens is looked up, not verified, and the pause ends once the text confirms one.
    """

    max_draft: int
    accepted_ema: float = 1.0
    is_drafting: bool = True
    on_probation: bool = True
    misses: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether it waits for a shadow probe to come true."""
        return not self.is_drafting

    @property
    def probe_tokens(self) -> int:
        """Two while paused."""
        return 0 if self.is_drafting else CAUTIOUS_DRAFT

    def ask(self) -> tuple[int, Self]:
        """0 while paused, ``max_draft`` once the mean is 1.5, else at most 2."""
        if not self.is_drafting:
            return 0, self
        if self.accepted_ema >= TRUSTING_EMA:
            return self.max_draft, self
        return min(CAUTIOUS_DRAFT, self.max_draft), self

    def draft_tokens(self, offer: Offer) -> int:
        """All of it."""
        return offer.proposed

    def after_verify(self, *, agreement: int, drafted: int, accepted: int) -> Self:  # noqa: ARG002
        """The mean moves half way to ``accepted``; misses pause it."""
        proven = accepted >= min(CAUTIOUS_DRAFT, self.max_draft)
        after = replace(
            self,
            accepted_ema=0.5 * self.accepted_ema + 0.5 * accepted,
            on_probation=self.on_probation and not proven,
        )
        if accepted > 0:
            return replace(after, misses=0)
        if self.on_probation or self.misses + 1 >= MISSES_BEFORE_REST:
            return replace(after, is_drafting=False, misses=0)
        return replace(after, misses=self.misses + 1)

    def after_probe(self, *, agreement: int, confirmed: bool) -> Self:  # noqa: ARG002
        """Drafting again, on probation, if the probe came true; else unchanged."""
        return type(self)(self.max_draft) if confirmed else self
