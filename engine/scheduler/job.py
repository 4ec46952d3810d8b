"""The one mutable record of a request in the scheduler, from `submit` to its last event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.events import Cancelled, Delta, Done, Started
from engine.finish import FinishCause
from engine.lookup.stats import LookupStats
from engine.outcome import SeqId, StepOutcome, Timings, TokenLogprobs, Usage, VerifyOutcome
from engine.params import SequenceParams, SpeculationParams
from engine.scheduler.admission import room_tokens
from engine.scheduler.queue import Priority
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.state import RowState, WaitingState
from engine.scheduler.stats import SlotStats

if TYPE_CHECKING:
    from engine.lookup.drafter import PromptLookup
    from engine.lookup.eligibility import Refusal
    from engine.prompt_cache.run_file import RunKey
    from engine.rows import PreemptedRow
    from engine.text.row_text import RowText


@dataclass(slots=True)
class DraftState:
    """What of a job is about drafts."""

    speculation: SpeculationParams | None = None
    """How its row drafts; None: it does not."""
    drafter: PromptLookup | None = None
    """From its first token on, while it drafts."""
    draft: tuple[int, ...] = ()
    """What its drafter proposes in this tick."""
    verified: LookupStats = field(default_factory=LookupStats)
    """What verify rounds did for it."""
    ended: LookupStats | None = None
    """What its last drafter had done when its row left or it was dropped."""
    refused: Refusal | None = None
    dropped: str | None = None

    def end(self) -> None:
        """Nothing more is drafted for the row."""
        self.speculation, self.draft = None, ()
        if self.drafter is not None:
            self.ended, self.drafter = self.drafter.stats, None

    def drop(self, reason: str) -> None:
        """End it before the answer is complete."""
        self.dropped = reason
        self.end()


@dataclass(slots=True)
class CachedState:
    """What of a waiting job is about the prompt cache."""

    covered: tuple[int, int] = (0, -1)
    """Prompt tokens that the cache has KV of, and the state of the cache when it had."""
    fetched: set[RunKey] = field(default_factory=set)
    """Files that were read for it."""
    is_ready: bool = False
    """Whether the cache has brought all it has of the prompt."""


class Job:
    """A request: what it asked, where its row stands, what it wrote and when.

    Args:
        request: as it came.
        params: with a seed, and with the context bound its row will have.
        bound: that bound.
        growth_tokens: how far ahead the budget looks for it; None: to its end.
        now_s: when it was submitted.
    """

    __slots__ = (
        "_bound",
        "_growth_tokens",
        "_logprobs",
        "_texts",
        "_tokens",
        "cached",
        "cached_tokens",
        "completion_tokens",
        "done_tokens",
        "drafts",
        "first_s",
        "forwards",
        "is_decoding",
        "is_long",
        "is_paused",
        "joined_s",
        "last_s",
        "params",
        "preempted",
        "prefill_s",
        "request",
        "seq",
        "slot",
        "started_s",
        "submitted_s",
        "text",
    )

    def __init__(
        self,
        request: ScheduledRequest,
        params: SequenceParams,
        *,
        bound: int,
        growth_tokens: int | None,
        now_s: float,
    ) -> None:
        self.request = request
        self.params = params
        self._bound, self._growth_tokens = bound, growth_tokens
        self.seq: SeqId | None = None
        """Its row, while it has a slot."""
        self.slot = -1
        self.text: RowText | None = None
        self.preempted: PreemptedRow | None = None
        """What its row was when it was preempted."""
        self.is_long = False
        self.is_paused = False
        self.is_decoding = False
        """Whether the next step forwards its newest token, the last of the prompt at first."""
        self.done_tokens = 0
        """Tokens whose KV its prefill has made or found."""
        self.cached_tokens = 0
        """Prompt tokens whose KV was there when it was admitted."""
        self.cached = CachedState()
        self.completion_tokens = 0
        self.drafts = DraftState()
        self.forwards = 0
        """Steps and verify rounds that were read, after the one that drew its first token."""
        self.submitted_s = self.joined_s = self.last_s = now_s
        self.started_s: float | None = None
        self.first_s: float | None = None
        self.prefill_s = 0.0
        """Seconds spent on reading the prompt, up to the first token."""
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    @property
    def id(self) -> str:
        """The request's."""
        return self.request.id

    @property
    def priority(self) -> Priority:
        """The request's."""
        return self.request.priority

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.params.prompt_ids)

    @property
    def prefill_tokens(self) -> int:
        """Tokens to forward before it decodes: the prompt, and what it wrote before."""
        return self.prompt_tokens if self.preempted is None else len(self.preempted.ids)

    @property
    def prefill_left(self) -> int:
        """Of these, how many are not forwarded yet; 0 once it decodes."""
        return 0 if self.is_decoding else self.prefill_tokens - self.done_tokens

    @property
    def queue_s(self) -> float:
        """How long it waited for its slot, the first time."""
        return 0.0 if self.started_s is None else self.started_s - self.submitted_s

    def waiting_state(self) -> WaitingState:
        """How admission sees it."""
        tokens = self.prefill_tokens
        left = tokens - self.cached.covered[0]
        return WaitingState(self.id, self.priority, left, self._room(tokens))

    def row_state(self, *, wants_step: bool) -> RowState:
        """How a plan sees it while it has a slot."""
        assert self.seq is not None
        tokens = self.prompt_tokens + self.completion_tokens
        return RowState(
            self.id,
            self.seq,
            self.priority,
            tokens,
            self._room(tokens),
            prefill_left=self.prefill_left,
            is_long=self.is_long,
            can_step=wants_step and not self.is_paused,
            can_be_preempted=self.request.hooks is None,
        )

    def assign_slot(self, seq: SeqId, slot: int, *, cached_tokens: int, is_long: bool) -> None:
        """It has a row; ``cached_tokens`` of what it reads need no forward."""
        self.seq, self.slot, self.is_long = seq, slot, is_long
        self.done_tokens = cached_tokens
        if self.started_s is None:
            self.cached_tokens = cached_tokens

    def start(self, now_s: float) -> Started:
        """Its first event."""
        self.started_s = now_s
        seed = self.params.sampling.seed
        assert seed is not None
        return Started(
            self.id,
            self.slot,
            self.prompt_tokens,
            seed,
            self.queue_s,
            self.cached_tokens,
            self.drafts.refused,
        )

    def decodes_since(self, now_s: float) -> None:
        """All but its newest token is read."""
        self.is_decoding = True
        self.joined_s = now_s

    def leave_slot(self) -> None:
        """Its row is gone."""
        self.seq, self.slot = None, -1
        self.is_decoding = False
        self.drafts.end()

    def requeue(self, preempted: PreemptedRow) -> None:
        """Its row is gone until there is room for it."""
        self.leave_slot()
        self.preempted = preempted
        self.done_tokens = 0

    def slot_stats(self) -> SlotStats:
        """How status pages see it."""
        return SlotStats(
            slot=self.slot,
            id=self.id,
            priority=self.priority,
            prompt_tokens=self.prompt_tokens,
            prompt_done_tokens=min(self.done_tokens, self.prompt_tokens),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            max_tokens=self.params.max_tokens,
            is_paused=self.is_paused,
        )

    def note(self, outcome: StepOutcome | VerifyOutcome, now_s: float) -> StepOutcome:
        """Take what a step or a verify round wrote; its last step."""
        self.forwards += self.first_s is not None
        if isinstance(outcome, StepOutcome):
            self._note(outcome, now_s)
            return outcome
        self.drafts.verified = self.drafts.verified.after_round(outcome)
        for step in outcome.steps:
            self._note(step, now_s)
        return outcome.steps[-1]

    def _note(self, outcome: StepOutcome, now_s: float) -> None:
        if outcome.error is not None:
            return
        if self.first_s is None:
            self.first_s = self.last_s = now_s
            self.prefill_s += now_s - self.joined_s
        if outcome.text:
            self._texts.append(outcome.text)
        if outcome.token is None or outcome.finish is FinishCause.EOS:
            return
        self.last_s = now_s
        self.completion_tokens += 1
        self._tokens.append(outcome.token)
        if outcome.logprobs is not None:
            self._logprobs.append(outcome.logprobs)

    def take_delta(self) -> Delta | None:
        """What it wrote since the last call; None: nothing."""
        if not self._texts and not self._tokens:
            return None
        delta = Delta(
            self.id,
            "".join(self._texts),
            tuple(self._tokens),
            tuple(self._logprobs),
            self.completion_tokens,
            self.prefill_s,
            0.0 if self.first_s is None else self.last_s - self.first_s,
        )
        self._texts, self._tokens, self._logprobs = [], [], []
        return delta

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens)

    def done(self, finish: FinishCause) -> Done:
        """Its last event."""
        seed = self.params.sampling.seed
        assert seed is not None
        drafts = self.drafts
        first_s = self.last_s if self.first_s is None else self.first_s
        return Done(
            self.id,
            finish,
            None if self.text is None else self.text.stop_match,
            self.usage(),
            Timings(
                prompt_n=0 if self.first_s is None else self.prompt_tokens - self.cached_tokens,
                prompt_s=self.prefill_s,
                predicted_n=self.completion_tokens,
                predicted_s=self.last_s - first_s,
                ttft_s=first_s - self.submitted_s,
                cache_n=self.cached_tokens,
                draft_n=drafts.verified.proposed,
                draft_n_accepted=drafts.verified.accepted,
                draft_rounds=drafts.verified.drafted_rounds,
            ),
            seed,
            self.queue_s,
            None if drafts.ended is None else drafts.ended.after_all(self.forwards),
            drafts.dropped,
        )

    def cancelled(self) -> Cancelled:
        """Its last event when nobody wants the rest."""
        return Cancelled(self.id, self.usage())

    def _room(self, tokens: int) -> int:
        return room_tokens(
            self.params, tokens, bound=self._bound, growth_tokens=self._growth_tokens
        )
