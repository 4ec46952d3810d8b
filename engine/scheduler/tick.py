"""Decides what one tick does: who enters, whose prompt is read, who decodes, who is preempted.

The rules, each pinned by a test:
    - decode steps are never left out for a prefill: a plan names both;
    - a short prompt is read ahead of the step it joins, so its first token comes after about one
      tick and its own prefill, whatever else is long;
    - where a step of many rows takes much longer than one of a single row, a prompt that comes
      alone to a few rows that decode has its first token before that step, not from it;
    - a tick reads about one chunk of short prompts, so that nobody's next token waits longer, and
      up to `BURST_CHUNKS` when many prompts come to few rows: steps of few rows are a poor use of
      the machine;
    - a long prefill gets one chunk every `Limits.grant_interval` steps, one step later at most
      when a short prompt is read in that tick, and a chunk a tick while nobody decodes: a prompt
      of C chunks has its first token after at most C * (interval + 1) ticks;
    - while rows decode a long chunk is read in parts, each as much sooner as it takes less time
      (and each one step later at most): the prompt gets the same share of the machine, and nobody
      waits for a whole chunk;
    - a request that waits never keeps a row from decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from engine.scheduler.admission import Admission, Admitted, PrefillShare, WaitReason, admit
from engine.scheduler.preemption import victims
from engine.scheduler.state import RowState, TickState

BURST_CHUNKS = 4
"""Most chunks of short prompts in one tick, about two seconds. Reading 16 prompts of 38 chunks one
chunk a step would add 38 steps of part of the rows to the 64 that all of them take together."""

DRAWS_WITH_ROWS = 4
"""Most rows that wait for a newcomer's own forward: its gain is one row's, its cost theirs."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A chunk of one request's prefill.

    The prompt's last token is a forward of its own and comes along when it is next.
    """

    id: str
    tokens: int
    """Most tokens of the chunk."""
    is_long: bool = False
    """Whether it is a long prefill's."""
    is_interleaved: bool = False
    """Whether it is that and rows decode: smaller, and read once the tick's events are told."""
    draws: bool = False
    """Whether the prompt's last token is forwarded alone at once, not by the step it joins."""
    is_alone: bool = False
    """Whether that last token is a grant of its own (`Limits.first_tokens_alone`)."""


@dataclass(frozen=True, slots=True)
class TickPlan:
    """What one tick does, in this order."""

    admitted: tuple[Admitted, ...] = ()
    """Requests that get a slot."""
    prefill: tuple[Grant, ...] = ()
    """Pieces to read; a row whose prompt is read to its end joins this tick's step."""
    decode: tuple[str, ...] = ()
    """Rows of the next step, beside those that join."""
    preempt: tuple[str, ...] = ()
    """Rows that give up their slot once their step in flight is read."""
    blocked: WaitReason | None = None
    """Why the queue's head waits; None when nobody does."""

    @property
    def is_mixed(self) -> bool:
        """Whether rows decode and prompts are read in the same tick."""
        return bool(self.decode) and bool(self.prefill)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.admitted or self.prefill or self.decode or self.preempt)


def plan_tick(state: TickState) -> TickPlan:
    """The plan for the next tick; a function of ``state`` alone."""
    short, share = _short_grants(state)
    admission = admit(state, share) if state.waiting else Admission()
    short += [
        _grant(state, newcomer.waiting.id, newcomer.waiting.prefill_tokens)
        for newcomer in admission.admitted
        if not newcomer.is_long
    ]
    decoding = [row for row in state.rows if not row.prefill_left]
    stepping = sum(1 for row in decoding if row.can_step)
    if state.steps_are_wide and len(short) == 1 and 0 < stepping <= DRAWS_WITH_ROWS:
        short = [replace(short[0], draws=True)]
    long = _long_grants(
        state,
        admission.admitted,
        beside=len(short),
        decoding=stepping > 0,
    )
    leaving = _leaving(state, admission)
    return TickPlan(
        admitted=admission.admitted,
        prefill=tuple(grant for grant in [*short, *long] if grant.id not in leaving),
        decode=tuple(row.id for row in decoding if row.can_step and row.id not in leaving),
        preempt=leaving,
        blocked=admission.reason,
    )


def steps_since_chunk(state: TickState, plan: TickPlan) -> int:
    """`TickState.steps_since_chunk` for the tick after ``plan``."""
    if any(grant.is_long for grant in plan.prefill):
        return 0
    after = state.steps_since_chunk + bool(plan.decode or plan.prefill)
    is_long = any(row.is_long and row.prefill_left for row in state.rows)
    if is_long or any(newcomer.is_long for newcomer in plan.admitted):
        return after
    # The next long prompt is due at once, but a short one of the same tick goes first.
    return min(after, max(0, _interval(state, decoding=bool(plan.decode)) - 1))


def _short_grants(state: TickState) -> tuple[list[Grant], PrefillShare]:
    """Pieces of short prompts that are being read, and what the tick still has for others."""
    share = PrefillShare(state.chunk_tokens, _share_chunks(state))
    grants: list[Grant] = []
    for row in state.rows:
        if not row.prefill_left or row.is_long:
            continue
        if not share.take(row.prefill_left):
            break
        grants.append(_grant(state, row.id, row.prefill_left))
    return grants, share


def _share_chunks(state: TickState) -> int:
    """Pieces of short prompts that this tick reads: more when more come than decode."""
    decoding = sum(1 for row in state.rows if not row.prefill_left)
    free = max(0, state.limits.parallel - len(state.rows))
    coming = len(state.rows) - decoding + min(free, len(state.waiting))
    return max(1, min(BURST_CHUNKS, 2 * coming // max(1, decoding)))


def _long_grants(
    state: TickState, admitted: Sequence[Admitted], *, beside: int, decoding: bool
) -> list[Grant]:
    """The chunk of the one long prompt, if it is due."""
    if not _is_due(state, beside=beside, decoding=decoding):
        return []
    long = [(row.id, row.prefill_left) for row in state.rows if row.is_long and row.prefill_left]
    long += [(e.waiting.id, e.waiting.prefill_tokens) for e in admitted if e.is_long]
    most = state.chunk_tokens
    if decoding and state.interleaved_tokens is not None:
        most = min(most, state.interleaved_tokens)
    return [
        replace(_grant(state, id_, min(left, most or left)), is_long=True, is_interleaved=decoding)
        for id_, left in long
    ]


def _is_due(state: TickState, *, beside: int, decoding: bool) -> bool:
    interval = _interval(state, decoding=decoding)
    if not decoding:
        return not beside or state.steps_since_chunk >= max(1, interval)
    if interval == 0:
        return False
    return state.steps_since_chunk >= (interval if beside else interval - 1)


def _interval(state: TickState, *, decoding: bool) -> int:
    """Steps for each chunk of the long prefill; 0: none while rows decode."""
    interval = state.limits.grant_interval
    return ceil(interval * state.interleaved_share) if decoding else interval


def _grant(state: TickState, id_: str, left: int) -> Grant:
    is_alone = state.limits.first_tokens_alone
    tokens = min(left, state.chunk_tokens or left)
    return Grant(id_, tokens, draws=is_alone, is_alone=is_alone)


def _leaving(state: TickState, admission: Admission) -> tuple[str, ...]:
    """Who is preempted: for the rows' growth first, else for a higher priority that waits."""
    policy = state.limits.preemption
    if policy is None:
        return ()
    going = victims(state.rows, policy, is_enough=lambda staying: _can_grow(state, staying))
    blocked = admission.blocked
    waits_for_room = admission.reason in {WaitReason.NO_SLOT, WaitReason.NO_KV}
    if not going and blocked is not None and waits_for_room:
        going = victims(
            state.rows,
            policy,
            is_enough=lambda staying: _has_room(state, staying, blocked.room_tokens),
            below=blocked.priority,
        )
    return tuple(row.id for row in going)


def _can_grow(state: TickState, staying: Sequence[RowState]) -> bool:
    """Whether the rows can have their next two tokens: one in flight and the one to submit."""
    if state.budget is None:
        return True
    needed = [min(row.tokens + 2, row.room_tokens) for row in staying]
    return state.budget.fits(needed, state.shape, shrinks=True)


def _has_room(state: TickState, staying: Sequence[RowState], room_tokens: int) -> bool:
    """Whether one more row fits beside those that stay."""
    if len(staying) >= state.limits.parallel:
        return False
    held = [row.room_tokens for row in staying]
    return state.budget is None or state.budget.fits(
        [*held, room_tokens], state.shape, shrinks=True
    )
