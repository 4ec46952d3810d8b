import pytest

from engine.events import Done
from engine.finish import FinishCause
from engine.outcome import Timings, Usage
from engine.scheduler.queue import Priority
from engine.scheduler.stats import Counters, SchedulerPhase, SchedulerStats


@pytest.mark.parametrize("cause", FinishCause)
def test_only_a_full_context_truncates(cause: FinishCause):
    done = Done("a", cause, None, Usage(1, 1), Timings(1, 0.0, 1, 0.0, 0.0), 0)
    assert done.truncated == (cause is FinishCause.CONTEXT_EXHAUSTED)


def test_a_snapshot_of_the_counters_stays_as_it_is():
    counters = Counters(finished={FinishCause.EOS: 1})
    snapshot = counters.snapshot()
    counters.requests += 1
    counters.finished[FinishCause.EOS] += 1
    assert (snapshot.requests, snapshot.finished) == (0, {FinishCause.EOS: 1})


def test_free_slots_and_depth_follow_from_the_rest():
    stats = SchedulerStats(
        phase=SchedulerPhase.SERVING,
        parallel=4,
        slots=(),
        queue_depths={Priority.HIGH: 1, Priority.NORMAL: 0, Priority.LOW: 2},
        queue_capacity=32,
        blocked=None,
        counters=Counters(),
        kv_rows=0,
        kv_positions=0,
        kv_budget_positions=None,
    )
    assert (stats.slots_free, stats.queue_depth) == (4, 3)
