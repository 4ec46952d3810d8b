"""Decides which waiting requests get a slot in this tick, and why the next one has to wait."""

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import ContextOverflow, KvBudgetExceeded
from engine.params import SequenceParams
from engine.scheduler.budget import KvBudget
from engine.scheduler.state import TickState, WaitingState


class WaitReason(StrEnum):
    """Why the first request that waits is not admitted."""

    NO_SLOT = "no_slot"
    NO_KV = "no_kv"
    """Its KV would not fit the budget beside the rows that run."""
    PREFILL = "prefill"
    """Other prompts go first: this tick's share, or the long prefill that is long."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that is admitted."""

    waiting: WaitingState
    is_long: bool
    """Whether its prefill is long between decode steps."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a tick admits."""

    admitted: tuple[Admitted, ...] = ()
    blocked: WaitingState | None = None
    """The first request that is left waiting."""
    reason: WaitReason | None = None


SMALLEST_PART = 8
"""A prompt counts at least this part of a chunk: the shortest forward reads all weights, too."""


class PrefillShare:
    """The short prompts that one tick reads, counted in tokens.

    Args:
        chunk_tokens: most tokens of a chunk; 0: any number, and everybody's prompt is read.
        chunks: how many chunks' worth there is.
    """

    def __init__(self, chunk_tokens: int, chunks: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._left = chunk_tokens * chunks
        self._is_untouched = True

    def take(self, prefill_tokens: int) -> bool:
        """Whether there is room for the next chunk of a prompt; if so it is taken.

        An untouched share has room for any chunk.
        """
        if not self._chunk_tokens:
            return True
        chunk = min(prefill_tokens, self._chunk_tokens)
        if chunk > self._left and not self._is_untouched:
            return False
        self._is_untouched = False
        self._left -= max(chunk, self._chunk_tokens // SMALLEST_PART)
        return True


def admit(state: TickState, share: PrefillShare) -> Admission:
    """Who enters.

    The queue's order is kept, but for one thing: while a long prefill is long, shorter prompts
    pass another long one. Whoever lacks a slot or KV blocks all behind it, so that it does not
    starve.

    Args:
        state: rows and queue.
        share: what this tick still reads of short prompts; admitted take their part.
    """
    admitted: list[Admitted] = []
    room = [row.room_tokens for row in state.rows]
    long = any(row.is_long and row.prefill_left for row in state.rows)
    passed: WaitingState | None = None
    for waiting in state.waiting:
        reason = None
        short = state.short_tokens
        is_long = short is not None and waiting.prefill_tokens > short
        if len(room) >= state.limits.parallel:
            reason = WaitReason.NO_SLOT
        elif is_long and long:
            passed = passed or waiting
            continue
        elif state.budget is not None and not state.budget.fits(
            [*room, waiting.room_tokens], state.shape
        ):
            reason = WaitReason.NO_KV
        elif not is_long and not share.take(waiting.prefill_tokens):
            reason = WaitReason.PREFILL
        if reason is not None:
            return _blocked(admitted, passed, waiting, reason)
        admitted.append(Admitted(waiting, is_long))
        room.append(waiting.room_tokens)
        long = long or is_long
    return _blocked(admitted, passed, None, WaitReason.PREFILL)


def _blocked(
    admitted: list[Admitted],
    passed: WaitingState | None,
    waiting: WaitingState | None,
    reason: WaitReason,
) -> Admission:
    if passed is not None:
        return Admission(tuple(admitted), passed, WaitReason.PREFILL)
    return Admission(tuple(admitted), waiting, None if waiting is None else reason)


def context_bound(params: SequenceParams, context_tokens: int, budget: KvBudget | None) -> int:
    """Most tokens a request's row may hold: the context, or less where the KV budget is smaller.

    Args:
        params: the request.
        context_tokens: the engine's bound.
        budget: None: no bound on KV.

    Raises:
        ContextOverflow: the context leaves no room for an answer.
        KvBudgetExceeded: the KV budget does not, even when nothing else runs.
    """
    prompt = len(params.prompt_ids)
    bound = context_tokens
    if params.context_tokens is not None:
        bound = min(bound, params.context_tokens)
    if prompt >= bound:
        raise ContextOverflow(prompt, bound)
    if budget is None or budget.positions is None:
        return bound
    affordable = budget.longest_row(bound)
    if prompt >= affordable:
        raise KvBudgetExceeded(prompt + 1, budget.positions)
    return affordable


def room_tokens(
    params: SequenceParams, tokens: int, *, bound: int, growth_tokens: int | None
) -> int:
    """Tokens the budget counts for a row (`RowState.room_tokens`).

    Args:
        params: the request.
        tokens: prompt and answer so far.
        bound: most tokens the row may hold.
        growth_tokens: with preemption, how far ahead to look; None: to the end of the answer.
    """
    most = bound
    if params.max_tokens is not None:
        most = min(bound, len(params.prompt_ids) + params.max_tokens)
    return most if growth_tokens is None else min(most, tokens + growth_tokens)
