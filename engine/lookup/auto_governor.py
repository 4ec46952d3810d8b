"""Drafts what pays: the measured price of a round against how often this text copies itself.

One rule. The longer a passage has agreed with its source, the likelier it continues; so chances are
kept by agreement length, learnt from every token that was proposed, whether a round verified it or
a plain step happened to confirm or refute it. ``best_draft`` then weighs these chances and the
measured costs. A draft that does not pay is not verified, but still teaches: trying costs nothing.
"""

from dataclasses import dataclass, replace
from typing import Self

from engine.lookup.governor import FixedGovernor, GatedGovernor, Governor, GradedGovernor, Offer
from engine.lookup.widths import WidthCosts, best_draft, costs_beside
from engine.params import LookupPolicy, SpeculationParams

PIPELINE_REFILL_ROUNDS = 4
"""Plain rounds without a step in flight that a draft causes: the switch and three empty asks."""
AGREEMENT_BANDS = (1, 2, 3, 4, 6, 9, 14, 24)
"""Lower ends of the agreement lengths that share one estimate; longer ones are one band."""
PRIOR_CHANCES = (0.15, 0.3, 0.5, 0.6, 0.75, 0.85, 0.93, 0.97)
"""Chance to continue, by band, before a sequence has shown its own."""
PRIOR_WEIGHT = 4.0
"""Tokens that a prior chance counts for."""
MEMORY = 0.97
"""What a band's evidence keeps at each new token: about its last 33 tokens matter.

Prior, weight and memory may be halved or doubled without moving the simulated speeds by more than
1 % (benchmarks/lookup_simulation.py)."""


@dataclass(frozen=True, slots=True)
class CopyChances:
    """How often a proposed token was right, by how long the text had agreed before it."""

    hits: tuple[float, ...]
    trials: tuple[float, ...]
    """Decayed counts; both begin with the priors."""

    @classmethod
    def prior(cls) -> Self:
        """What is assumed of a text that has not been seen yet."""
        weights = tuple(PRIOR_WEIGHT for _ in PRIOR_CHANCES)
        return cls(tuple(PRIOR_WEIGHT * chance for chance in PRIOR_CHANCES), weights)

    def of(self, agreement: int, tokens: int) -> list[float]:
        """Chance of each of the next ``tokens`` proposed ones, if all before it are right."""
        return [
            self.hits[band] / self.trials[band]
            for band in (_band(agreement + place) for place in range(tokens))
        ]

    def after(self, *, agreement: int, right: int, wrong: bool) -> Self:
        """The chances after ``right`` tokens in a row came true and then, if so, one did not."""
        hits, trials = list(self.hits), list(self.trials)
        for place in range(right + wrong):
            band = _band(agreement + place)
            hits[band] = MEMORY * hits[band] + (place < right)
            trials[band] = MEMORY * trials[band] + 1
        return replace(self, hits=tuple(hits), trials=tuple(trials))


@dataclass(frozen=True, slots=True)
class AutoGovernor:
    """Weighs each proposal by its agreement with the context; see the module."""

    max_draft: int
    costs: WidthCosts
    chances: CopyChances
    can_pay: bool
    """Whether any acceptance at all would pay; if not, nothing is ever looked up."""
    shares: bool = False
    """Whether a round may share its forward with the other rows."""

    @classmethod
    def fresh(cls, max_draft: int, costs: WidthCosts, *, shares: bool = False) -> Self:
        """The governor of a sequence that has not drafted yet."""
        return cls(max_draft, costs, CopyChances.prior(), costs.can_pay, shares)

    @property
    def is_paused(self) -> bool:
        """Whether no draft can pay on this device, whatever the text."""
        return not self.can_pay

    @property
    def probe_tokens(self) -> int:
        """One: each next token settles the proposal that was not verified."""
        return int(self.can_pay)

    def ask(self) -> tuple[int, Self]:
        """``max_draft``, and 0 where nothing pays; ``draft_tokens`` weighs what is found."""
        return (self.max_draft if self.can_pay else 0), self

    def draft_tokens(self, offer: Offer) -> int:
        """The length that pays best at the measured costs, 0 if none does.

        A draft that ends a pipeline also pays for the host reads until it is full again.
        """
        refill = PIPELINE_REFILL_ROUNDS * max(0.0, self.costs.verify(0) - 1)
        rows = offer.others + 1
        token = self.costs.step(rows) / rows
        extra_cost = refill / token if offer.is_pipelined else 0.0
        chances = self.chances.of(offer.agreement, offer.proposed)
        costs = costs_beside(self.costs, offer.others, shares=self.shares)
        return best_draft(chances, costs, extra_cost=extra_cost)

    def after_verify(self, *, agreement: int, drafted: int, accepted: int) -> Self:
        """The chances after a round."""
        wrong = accepted < drafted
        learnt = self.chances.after(agreement=agreement, right=accepted, wrong=wrong)
        return replace(self, chances=learnt)

    def after_probe(self, *, agreement: int, confirmed: bool) -> Self:
        """The chances after the first token of an unverified proposal was settled."""
        learnt = self.chances.after(agreement=agreement, right=int(confirmed), wrong=not confirmed)
        return replace(self, chances=learnt)


def governor_for(
    params: SpeculationParams,
    *,
    unmeasured: LookupPolicy,
    costs: WidthCosts | None,
    shares: bool = False,
) -> Governor:
    """A new sequence's governor.

    Args:
        params: the request's settings.
        unmeasured: what ``auto`` is until costs are known: gated on CUDA, else graded.
        costs: the widths' costs, once the device has been measured.
        shares: whether its rounds may share a forward with other rows.
    """
    policy = params.policy
    if policy is LookupPolicy.AUTO:
        if costs is not None:
            return AutoGovernor.fresh(params.max_draft, costs, shares=shares)
        policy = LookupPolicy.GRADED if unmeasured is LookupPolicy.AUTO else unmeasured
    match policy:
        case LookupPolicy.GRADED:
            return GradedGovernor.fresh(params.max_draft)
        case LookupPolicy.GATED:
            return GatedGovernor(params.max_draft)
        case LookupPolicy.FIXED:
            return FixedGovernor(params.max_draft)


def _band(agreement: int) -> int:
    """Index of the band that holds an agreement of at least 1 token."""
    for index in range(len(AGREEMENT_BANDS) - 1, 0, -1):
        if agreement >= AGREEMENT_BANDS[index]:
            return index
    return 0
