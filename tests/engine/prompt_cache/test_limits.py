"""Bounds are checked once, and counts can be kept."""

import pytest

from engine.errors import InvalidParams
from engine.prompt_cache.limits import CacheCounters, CacheLimits


@pytest.mark.parametrize(
    "bad",
    [{"max_bytes": 0}, {"max_entries": 0}, {"ttl_s": 0.0}, {"ttl_s": -1.0}, {"min_tokens": 0}],
    ids=str,
)
def test_a_bound_of_nothing_is_refused(bad):
    with pytest.raises(InvalidParams):
        CacheLimits(**bad)


def test_bytes_and_time_may_be_without_bound():
    limits = CacheLimits(max_bytes=None, ttl_s=None)
    assert (limits.max_bytes, limits.ttl_s) == (None, None)


def test_a_snapshot_of_the_counters_stays_as_it_is():
    counters = CacheCounters(hits=1)
    kept = counters.snapshot()
    counters.hits = 2
    assert kept.hits == 1
