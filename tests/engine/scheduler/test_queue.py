from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.scheduler.queue import Priority, RequestQueue


@dataclass(frozen=True)
class Entry:
    id: str
    priority: Priority = Priority.NORMAL


def queue_of(*entries: Entry, capacity: int = 100) -> RequestQueue[Entry]:
    queue: RequestQueue[Entry] = RequestQueue(capacity)
    queue.push(*entries)
    return queue


def ids(queue: RequestQueue[Entry]) -> list[str]:
    return [entry.id for entry in queue]


def test_lanes_are_strict_and_each_is_first_come_first_served():
    queue = queue_of(
        Entry("l", Priority.LOW),
        Entry("n1"),
        Entry("h1", Priority.HIGH),
        Entry("n2"),
        Entry("h2", Priority.HIGH),
    )
    assert ids(queue) == ["h1", "h2", "n1", "n2", "l"]


def test_a_full_queue_refuses_and_says_how_full():
    queue = queue_of(Entry("a"), Entry("b"), capacity=2)
    with pytest.raises(QueueFull, match="2 requests wait") as refused:
        queue.push(Entry("c", Priority.HIGH))
    assert (refused.value.waiting, refused.value.capacity) == (2, 2)
    assert ids(queue) == ["a", "b"]


def test_several_entries_are_taken_together_or_not_at_all():
    queue = queue_of(Entry("a"), capacity=2)
    with pytest.raises(QueueFull):
        queue.push(Entry("b"), Entry("c"))
    assert ids(queue) == ["a"]


def test_free_slots_count_as_room():
    queue = queue_of(capacity=0)
    queue.push(Entry("a"), free_slots=1)
    with pytest.raises(QueueFull):
        queue.push(Entry("b"), free_slots=1)


def test_who_was_admitted_once_comes_back_first_of_its_lane_however_full():
    queue = queue_of(Entry("h", Priority.HIGH), Entry("a"), capacity=2)
    queue.push_back_in(Entry("again"))
    assert ids(queue) == ["h", "again", "a"]


def test_removing_what_is_not_there_changes_nothing():
    queue = queue_of(Entry("a"))
    assert queue.remove("b") is None
    assert ids(queue) == ["a"]


def test_depths_are_reported_by_lane():
    queue = queue_of(Entry("a", Priority.HIGH), Entry("b"), Entry("c"))
    assert queue.depths == (1, 2, 0)


moves = st.one_of(
    st.tuples(st.just("push"), st.sampled_from(Priority)),
    st.tuples(st.just("push_back_in"), st.sampled_from(Priority)),
    st.tuples(st.just("remove"), st.integers(0, 30)),
)


@given(st.lists(moves, max_size=40), st.integers(0, 12))
def test_any_moves_agree_with_a_sorted_list(steps, capacity: int):
    queue: RequestQueue[Entry] = RequestQueue(capacity)
    lanes: dict[Priority, list[Entry]] = {priority: [] for priority in Priority}
    for number, (move, argument) in enumerate(steps):
        held = sum(map(len, lanes.values()))
        if move == "remove":
            gone = queue.remove(str(argument))
            expected = [e for lane in lanes.values() for e in lane if e.id == str(argument)]
            assert [gone] == (expected or [None])
            for lane in lanes.values():
                lane[:] = [entry for entry in lane if entry.id != str(argument)]
            continue
        entry = Entry(str(number), argument)
        if move == "push_back_in":
            queue.push_back_in(entry)
            lanes[argument].insert(0, entry)
        elif held < capacity:
            queue.push(entry)
            lanes[argument].append(entry)
        else:
            with pytest.raises(QueueFull):
                queue.push(entry)
    assert list(queue) == [entry for priority in Priority for entry in lanes[priority]]
    assert len(queue) == sum(queue.depths)
