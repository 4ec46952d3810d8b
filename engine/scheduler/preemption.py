"""Which running rows is preempted when others need their room.

A preempted row loses its KV, not its text: it comes back to its lane's head, reads prompt and
answer again and continues. Nobody is preempted for an equal: a row is preempted for a higher
priority, or for the growth of the rows alongside. So two requests never swap for ever.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from engine.outcome import SeqId
from engine.scheduler.queue import Priority


class PreemptionPolicy(StrEnum):
    """Who is preempted first; of equals the row that was opened first."""

    LONGEST_FIRST = "longest-first"
    LOWEST_PRIORITY = "lowest-priority"


class Candidate(Protocol):
    """What the choice looks at."""

    @property
    def seq(self) -> SeqId:
        """Its handle: smaller is older."""

    @property
    def priority(self) -> Priority:
        """Its lane."""

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""

    @property
    def can_be_preempted(self) -> bool:
        """Whether it can continue later from its ids alone."""


C = TypeVar("C", bound=Candidate)


def victims(
    rows: Sequence[C],
    policy: PreemptionPolicy,
    *,
    is_enough: Callable[[Sequence[C]], bool],
    below: Priority | None = None,
) -> tuple[C, ...]:
    """The fewest rows, in the policy's order, whose leaving is enough.

    Args:
        rows: all that run.
        policy: who goes first.
        is_enough: whether it is, when only these rows stay.
        below: only rows of a lower priority than this may go, the lowest first, lest those that
            left preempt others in turn; None: any but the last one.

    Returns:
        Nobody when nobody needs to go, or when all who may go would not be enough.
    """
    staying = list(rows)
    going: list[C] = []
    order = sorted(
        (row for row in rows if row.can_be_preempted and (below is None or row.priority > below)),
        key=lambda row: (0 if below is None else -row.priority, *_rank(row, policy)),
    )
    for row in order:
        if is_enough(staying):
            return tuple(going)
        if below is None and len(staying) == 1:
            break
        staying.remove(row)
        going.append(row)
    return tuple(going) if is_enough(staying) else ()


def _rank(row: Candidate, policy: PreemptionPolicy) -> tuple[int, int]:
    match policy:
        case PreemptionPolicy.LONGEST_FIRST:
            return -row.tokens, row.seq
        case PreemptionPolicy.LOWEST_PRIORITY:
            return -row.priority, row.seq
