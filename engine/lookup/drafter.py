"""Proposes the tokens that followed the last time the context's end was seen.

Each ``ask`` is followed by exactly one of: a forward fed by the same token (then ``observe`` after
a plain step, ``accept`` after a verify round), or ``retract``. A drafter holds its own request's
tokens and the named reference texts, nothing else.

Source: Apoorv Saxena, "Prompt Lookup Decoding", 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.errors import DrafterOutOfStep
from engine.lookup.auto_governor import AGREEMENT_BANDS
from engine.lookup.governor import Governor, Offer
from engine.lookup.ngram_index import NgramIndex
from engine.lookup.reference import ReferenceText
from engine.lookup.stats import LookupStats
from engine.params import SpeculationParams

EMPTY_ASKS_BEFORE_PIPELINING = 3
"""Asks in a row without a proposal after which plain rounds keep a step in flight."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    """Tokens, and how many before them agree with the context's end."""

    tokens: tuple[int, ...]
    agreement: int


@dataclass(frozen=True, slots=True)
class _Probe:
    """An unverified claim: the context will hold ``tokens`` from ``start`` on."""

    start: int
    tokens: tuple[int, ...]
    agreement: int


@dataclass(slots=True)
class _Request:
    """Everything that ``start`` forgets."""

    index: NgramIndex
    governor: Governor
    prompt_tokens: int
    probe: _Probe | None = None
    last_paused: bool = False
    last_agreement: int = 0
    plain_streak: int = 0
    stats: LookupStats = field(default_factory=LookupStats)


class PromptLookup:
    """The drafter without a model.

    The longest n-gram wins. At equal length the own context comes before the references, and these
    in the order given: the request's own words are the closer precedent.
    """

    __slots__ = ("_fresh_governor", "_params", "_references", "_request")

    def __init__(
        self,
        params: SpeculationParams,
        governor: Governor,
        *,
        references: Sequence[ReferenceText] = (),
    ) -> None:
        self._params = params
        self._fresh_governor = governor
        self._references = tuple(references)
        self._request = self._fresh_request(())

    @property
    def governor(self) -> Governor:
        """The present draft budget's keeper, a value."""
        return self._request.governor

    @property
    def stats(self) -> LookupStats:
        """What it did so far."""
        return self._request.stats

    @property
    def observed_tokens(self) -> int:
        """Tokens of the answer that are in the context."""
        return len(self._request.index) - self._request.prompt_tokens

    def start(self, prompt: Sequence[int], first_token: int) -> None:
        """Forget everything; the context is ``prompt`` and the first token of the answer."""
        self._request = self._fresh_request((*prompt, first_token))

    def prepare(self, limit_tokens: int | None) -> bool:
        """Index at most ``limit_tokens`` more of the context; whether nothing is left to do.

        A scheduler calls it once a tick before the first ask, so that a long prompt's index holds
        no neighbour up; an ask alone indexes the rest at once.
        """
        return self._request.index.extend(limit_tokens)

    def propose(self, current: int, block_size: int, others: int = 0) -> tuple[int, ...]:
        """At most ``block_size`` likely tokens after ``current``; empty: decode plainly.

        Args:
            current: the context's last token.
            block_size: tokens there is room for.
            others: rows that wait for their next token meanwhile.

        Raises:
            DrafterOutOfStep: ``current`` is not the context's last token.
        """
        request = self._request
        if not len(request.index) or request.index.tokens[-1] != current:
            raise DrafterOutOfStep(
                f"prompt lookup was asked to go on after token {current}, not its own"
            )
        self._settle_probe()
        budget, request.governor = request.governor.ask()
        budget = min(budget, block_size)
        request.last_paused = budget <= 0
        draft = self._draft(budget, others) if budget > 0 else self._rest()
        request.plain_streak = 0 if draft else request.plain_streak + 1
        request.stats = request.stats.after_ask(len(draft), is_paused=request.last_paused)
        return draft

    def observe(self, tokens: Sequence[int]) -> None:
        """Add tokens that plain steps wrote."""
        self._request.index.append(tokens)

    def catch_up(self, generated: Sequence[int]) -> None:
        """Add the part of the whole answer so far that is not in the context yet.

        Raises:
            DrafterOutOfStep: the context is ahead of ``generated``. A slice past its end would be
                silently empty, so the lengths are compared first.
        """
        known = self.observed_tokens
        if known > len(generated):
            raise DrafterOutOfStep(
                f"prompt lookup knows {known} tokens of an answer of {len(generated)}"
            )
        self.observe(generated[known:])

    def accept(self, draft: Sequence[int], accepted: int, emitted: Sequence[int]) -> None:
        """Add what a verify round wrote, and learn how much of its draft was right."""
        request = self._request
        request.index.append(emitted)
        if not draft:
            return
        request.probe = None  # the round has settled it
        request.governor = request.governor.after_verify(
            agreement=request.last_agreement, drafted=len(draft), accepted=accepted
        )
        request.stats = replace(request.stats, accepted=request.stats.accepted + accepted)

    def discard(self, draft: Sequence[int]) -> None:
        """Take the last ask's counts back: no forward follows it.

        What was learnt stays: a settled probe, an ask of a rest, the streak of empty asks.
        """
        request = self._request
        request.stats = request.stats.before_ask(len(draft), was_paused=request.last_paused)

    def pipelines_plain_rounds(self) -> bool:
        """Whether plain rounds may keep a step in flight while this drafter is asked."""
        request = self._request
        return request.governor.is_paused or request.plain_streak >= EMPTY_ASKS_BEFORE_PIPELINING

    def _fresh_request(self, context: Sequence[int]) -> _Request:
        index = NgramIndex(
            ngram_min=self._params.ngram_min, ngram_max=self._params.ngram_max, tokens=context
        )
        return _Request(index, self._fresh_governor, prompt_tokens=max(0, len(context) - 1))

    def _draft(self, budget: int, others: int) -> tuple[int, ...]:
        """What the governor takes of the best proposal within the budget."""
        request = self._request
        proposal = self._look_up(budget)
        if proposal is None:
            return ()
        self._keep_probe(proposal)
        offer = Offer(
            agreement=proposal.agreement,
            proposed=len(proposal.tokens),
            is_pipelined=self.pipelines_plain_rounds(),
            others=others,
        )
        length = request.governor.draft_tokens(offer)
        request.last_agreement = proposal.agreement
        request.last_paused = length == 0
        return proposal.tokens[:length]

    def _rest(self) -> tuple[int, ...]:
        """Nothing is drafted; a paused governor's shadow probe may be taken."""
        request = self._request
        if request.probe is None and request.governor.probe_tokens:
            proposal = self._look_up(request.governor.probe_tokens)
            if proposal is not None:
                self._keep_probe(proposal)
        return ()

    def _keep_probe(self, proposal: _Proposal) -> None:
        """Remember what a proposal claims, if the governor learns from unverified ones."""
        request = self._request
        wanted = request.governor.probe_tokens
        if 0 < wanted <= len(proposal.tokens):
            claim = proposal.tokens[:wanted]
            request.probe = _Probe(len(request.index), claim, proposal.agreement)

    def _settle_probe(self) -> None:
        """Hold the pending probe against what was written since; keep it while undecided."""
        request = self._request
        probe = request.probe
        if probe is None:
            return
        written = request.index.tokens[probe.start : probe.start + len(probe.tokens)]
        confirmed = all(claim == token for claim, token in zip(probe.tokens, written, strict=False))
        if confirmed and len(written) < len(probe.tokens):
            return
        request.probe = None
        request.governor = request.governor.after_probe(
            agreement=probe.agreement, confirmed=confirmed
        )
        confirmations = request.stats.shadow_confirmations + confirmed
        request.stats = replace(request.stats, shadow_confirmations=confirmations)

    def _look_up(self, limit_tokens: int) -> _Proposal | None:
        """What followed the longest known n-gram that the context ends with."""
        index = self._request.index
        index.extend()
        suffix = index.tokens[-self._params.ngram_max :].tolist()
        source, best = index, index.match(suffix)
        for reference in self._references:
            found = reference.index.match(suffix)
            if found is not None and (best is None or found.ngram > best.ngram):
                source, best = reference.index, found
        if best is None:
            return None
        agreement = source.agreement(index.tokens, best, AGREEMENT_BANDS[-1])
        return _Proposal(source.after(best, limit_tokens), agreement)
