from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.outcome import SeqId
from engine.scheduler.preemption import PreemptionPolicy, victims
from engine.scheduler.queue import Priority

LONGEST = PreemptionPolicy.LONGEST_FIRST
LOWEST = PreemptionPolicy.LOWEST_PRIORITY


@dataclass(frozen=True)
class Row:
    seq: SeqId
    tokens: int = 10
    priority: Priority = Priority.NORMAL
    can_be_preempted: bool = True


def row(seq: int, tokens: int = 10, priority: Priority = Priority.NORMAL, can: bool = True) -> Row:
    return Row(SeqId(seq), tokens, priority, can)


def leaving(rows, policy=LONGEST, *, keep: int, below: Priority | None = None) -> list[int]:
    """Who goes until at most ``keep`` rows stay."""
    found = victims(rows, policy, is_enough=lambda staying: len(staying) <= keep, below=below)
    return [one.seq for one in found]


def test_the_longest_row_goes_first():
    assert leaving([row(0, 5), row(1, 9), row(2, 7)], keep=1) == [1, 2]


def test_the_lowest_priority_goes_first_whatever_its_length():
    rows = [row(0, 90, Priority.HIGH), row(1, 5, Priority.LOW), row(2, 50)]
    assert leaving(rows, LOWEST, keep=2) == [1]


@pytest.mark.parametrize("policy", PreemptionPolicy)
def test_of_equals_the_smallest_sequence_id_goes_first(policy: PreemptionPolicy):
    assert leaving([row(7), row(3), row(5)], policy, keep=2) == [3]


def test_nobody_goes_when_there_is_room():
    assert leaving([row(0), row(1)], keep=2) == []


def test_nobody_goes_when_it_would_not_help():
    assert leaving([row(0, can=False), row(1)], keep=0, below=Priority.HIGH) == []


def test_rows_that_cannot_be_replayed_stay():
    assert leaving([row(0, 99, can=False), row(1, 5), row(2, 7)], keep=2) == [2]


def test_only_lower_priorities_yield_to_one_that_waits():
    rows = [row(0, 99, Priority.HIGH), row(1, 50), row(2, 5, Priority.LOW)]
    assert leaving(rows, keep=2, below=Priority.NORMAL) == [2]
    assert leaving(rows, keep=1, below=Priority.HIGH) == [2, 1]
    assert leaving(rows, keep=2, below=Priority.LOW) == []


def test_for_one_that_waits_the_lowest_priority_leaves_whatever_the_lengths():
    """Else the longest, once it waits, would preempt the lowest in turn."""
    rows = [row(0, 99), row(1, 5, Priority.LOW), row(2, 7, Priority.LOW)]
    assert leaving(rows, keep=1, below=Priority.HIGH) == [2, 1]


def test_the_last_row_never_yields_to_growth():
    assert leaving([row(0), row(1)], keep=0) == []


rows_of_any_kind = st.lists(
    st.builds(
        row,
        st.integers(0, 50),
        st.integers(1, 20),
        st.sampled_from(Priority),
        st.booleans(),
    ),
    unique_by=lambda one: one.seq,
    max_size=8,
)


@given(
    rows_of_any_kind,
    st.sampled_from(PreemptionPolicy),
    st.integers(0, 8),
    st.none() | st.sampled_from(Priority),
)
def test_victims_are_few_allowed_and_enough_or_none(rows, policy, keep, below):
    gone = leaving(rows, policy, keep=keep, below=below)
    allowed = {
        one.seq for one in rows if one.can_be_preempted and (below is None or one.priority > below)
    }
    assert set(gone) <= allowed
    needed = max(0, len(rows) - keep)
    spare = len(allowed) if below is not None else min(len(allowed), max(0, len(rows) - 1))
    assert len(gone) == (needed if needed <= spare else 0)
