"""One request at a time on an engine: prefill, the pipelined decode loop, text and timings.

Front ends that answer one person (``generate``, the chat) drive this from the engine thread; the
server's scheduler drives the same engine for many.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.engine import Engine
from engine.errors import EvalFailed
from engine.finish import FinishCause
from engine.lookup.auto_governor import governor_for
from engine.lookup.drafter import PromptLookup
from engine.lookup.eligibility import require_eligible
from engine.lookup.reference import ReferenceText
from engine.lookup.rounds import Rounds
from engine.lookup.stats import LookupStats
from engine.lookup.warm_up import every_width, few_widths, warm_up_verify_widths
from engine.lookup.widths import WidthCosts
from engine.outcome import SeqId, StepOutcome, Timings, Usage
from engine.params import LookupPolicy, SequenceParams, SpeculationParams, seeded
from engine.prefill import PrefillPacer, plan_prefill
from engine.prompt_cache.cache import PromptCache
from engine.steps import Ticket
from engine.text.row_text import RowText


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How much of the prompt was read."""

    done_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became safe to show."""

    text: str
    tokens: int
    """Tokens written so far."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a request that was not cancelled."""

    text: str
    finish: FinishCause
    seed: int
    usage: Usage
    timings: Timings
    stop_match: str | None = None
    """The stop string that ended it."""
    lookup: LookupStats | None = None
    """What prompt lookup did, when it was on."""
    lookup_dropped: str | None = None
    """Why it ended before the answer did, if it did."""


SessionEvent = PrefillProgress | TextDelta | Answer


class Session:
    """Answers one request at a time.

    Args:
        engine: where the row lives.
        pacer: how prompts are cut.
        pipelined: False submits a step only when the one before was read (for debugging).
        width_costs: what verify rounds cost here, if it was measured before.
        builds_kernels: whether a width's first forward is slow here (a GPU), so that every width
            is run before the first token, whatever the policy.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        pacer: PrefillPacer | None = None,
        pipelined: bool = True,
        width_costs: WidthCosts | None = None,
        builds_kernels: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self.width_costs = width_costs
        """What verify rounds cost here; measured by the first request that drafts."""
        self._builds_kernels = builds_kernels
        self._pacer = PrefillPacer() if pacer is None else pacer
        self._pipelined = pipelined
        self._clock = clock

    def generate(
        self,
        params: SequenceParams,
        *,
        stops: Sequence[str] = (),
        references: Sequence[ReferenceText] = (),
        cache: PromptCache | None = None,
    ) -> Iterator[SessionEvent]:
        """Events of one answer; the last is `Answer`. Closing the iterator frees the row.

        Args:
            params: the request; with ``speculation`` it drafts.
            stops: stop strings.
            references: texts that drafts may also be copied from.
            cache: of this engine; the KV of earlier turns is used, and this turn's is kept.

        Raises:
            InvalidParams: among others, ``prompt_lookup`` where the model or the sampler is not
                eligible.
            EngineError: at any point; what was yielded before stays valid.
        """
        params = seeded(params)
        text = RowText(self._engine.tokenizer.decoder(), stops)
        run = _Run(params, text, references, self._clock)
        rows = self._engine if cache is None else cache
        seq = rows.open(params, text=text)
        try:
            run.cached_tokens = self._engine.cached_tokens(seq)
            if params.speculation is not None:
                max_draft = params.speculation.max_draft
                require_eligible(self._engine.drafting.facts(seq, max_draft))
            if params.max_tokens == 0:
                run.finish = FinishCause.LENGTH
            else:
                yield from self._prefill(seq, run, cache)
                yield from self._decode(seq, run)
            yield run.answer()
        finally:
            if cache is None:
                self._engine.close(seq)
            else:
                cache.close(seq, keeps=True)
                cache.settle()

    def _prefill(
        self, seq: SeqId, run: "_Run", cache: PromptCache | None
    ) -> Iterator[SessionEvent]:
        prompt_tokens = len(run.params.prompt_ids)
        done = run.cached_tokens
        while done < prompt_tokens:
            plan = plan_prefill(
                prompt_tokens=prompt_tokens,
                cached_tokens=done,
                chunk_tokens=self._pacer.chunk_tokens,
            )
            piece = next(plan)
            if piece.is_last:
                if cache is not None:
                    cache.at_piece(seq, piece.start)
                self._warm_up(seq, run)
            before = self._clock()
            outcome = self._engine.prefill(seq, piece)
            done = outcome.done_tokens
            if outcome.first is None:
                self._pacer.observe(piece.tokens, self._clock() - before)
                yield PrefillProgress(done, prompt_tokens)
            else:
                yield from run.take(outcome.first)

    def _warm_up(self, seq: SeqId, run: "_Run") -> None:
        """Measure widths once, before the first token, unless the budget never asks for them."""
        speculation = run.params.speculation
        if speculation is None or not self._must_measure(speculation):
            return
        if self._engine.draft_room(seq, speculation.max_draft) < speculation.max_draft:
            return
        choose = every_width if self._builds_kernels else few_widths
        before = self._clock()
        try:
            self.width_costs = warm_up_verify_widths(
                self._engine.drafting, seq, choose(speculation.max_draft), self._clock
            )
        except EvalFailed as error:  # what fails here would fail in a round too
            run.dropped = error
        run.warm_up_s = self._clock() - before

    def _must_measure(self, speculation: SpeculationParams) -> bool:
        if not self._builds_kernels and speculation.policy is not LookupPolicy.AUTO:
            return False
        return self.width_costs is None or self.width_costs.max_draft < speculation.max_draft

    def _decode(self, seq: SeqId, run: "_Run") -> Iterator[SessionEvent]:
        if run.finish is not None:
            return
        speculation = run.params.speculation
        if speculation is not None and run.dropped is None:
            run.drafter = self._drafter(seq, run, speculation)
        rounds: Rounds[Ticket] = Rounds(
            self._engine,
            seq,
            drafter=run.drafter,
            max_draft=0 if speculation is None else speculation.max_draft,
            pipelined=self._pipelined,
        )
        for outcome in rounds.run():
            run.dropped = run.dropped or rounds.dropped
            run.forwards = rounds.forwards
            yield from run.take(outcome)

    def _drafter(self, seq: SeqId, run: "_Run", speculation: SpeculationParams) -> PromptLookup:
        governor = governor_for(
            speculation, unmeasured=self._engine.unmeasured_policy, costs=self.width_costs
        )
        drafter = PromptLookup(speculation, governor, references=run.references)
        drafter.start(run.params.prompt_ids, self._engine.last_token(seq))
        return drafter


class _Run:
    """What one answer has come to so far."""

    def __init__(
        self,
        params: SequenceParams,
        text: RowText,
        references: Sequence[ReferenceText],
        clock: Callable[[], float],
    ) -> None:
        self.params = params
        self.references = references
        self.drafter: PromptLookup | None = None
        self.cached_tokens = 0
        """Prompt tokens whose KV was there before."""
        self.forwards = 0
        """Forwards after the prompt's."""
        self.warm_up_s = 0.0
        """Seconds of the prefill that went into measuring widths."""
        self.dropped: Exception | None = None
        """Why nothing more is drafted."""
        self.finish: FinishCause | None = None
        self._text = text
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._last = self._started
        self._tokens = 0
        self._pieces: list[str] = []

    def take(self, outcome: StepOutcome) -> Iterator[SessionEvent]:
        """Note one step; its text, if any, is an event."""
        now = self._clock()
        if self._first is None:
            self._first = self._last = now
        if outcome.token is not None and outcome.finish is not FinishCause.EOS:
            self._tokens += 1
            self._last = now
        self.finish = outcome.finish
        if outcome.text:
            self._pieces.append(outcome.text)
            yield TextDelta(outcome.text, self._tokens)
        if outcome.error is not None:
            raise outcome.error

    def answer(self) -> Answer:
        """The closing event."""
        assert self.finish is not None
        assert self.params.sampling.seed is not None
        prompt_tokens = len(self.params.prompt_ids)
        first = self._started if self._first is None else self._first
        forwarded = 0 if self._first is None else prompt_tokens - self.cached_tokens
        lookup = None if self.drafter is None else self.drafter.stats.after_all(self.forwards)
        return Answer(
            text="".join(self._pieces),
            finish=self.finish,
            seed=self.params.sampling.seed,
            usage=Usage(prompt_tokens, self._tokens, self.cached_tokens),
            timings=Timings(
                prompt_n=forwarded,
                prompt_s=first - self._started - self.warm_up_s,
                predicted_n=self._tokens,
                predicted_s=self._last - first,
                ttft_s=first - self._started,
                cache_n=self.cached_tokens,
                draft_n=0 if lookup is None else lookup.proposed,
                draft_n_accepted=0 if lookup is None else lookup.accepted,
                draft_rounds=0 if lookup is None else lookup.drafted_rounds,
            ),
            lookup=lookup,
            lookup_dropped=None if self.dropped is None else str(self.dropped),
            stop_match=self._text.stop_match,
        )
