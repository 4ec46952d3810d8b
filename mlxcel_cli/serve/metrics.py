"""The figures of ``/metrics``: llama.cpp's names first, then ours."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.prompt_cache.limits import CacheStats
from engine.scheduler.stats import Counters, SchedulerStats

CONTENT_TYPE = CONTENT_TYPE_LATEST

Named = Mapping[str, tuple[str, float]]
"""A family's name to its help text and value."""


class HasStats(Protocol):
    """Where the newest counts are."""

    stats: SchedulerStats | None
    refused: int
    """Requests that the engine never heard of."""
    read_tokens: int
    """Prompt tokens that were forwarded."""
    read_s: float
    """Seconds that this took."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """What the rates are made of, at the scrape before."""

    read_tokens: int = 0
    read_s: float = 0.0
    completion_tokens: int = 0
    generation_s: float = 0.0


class MetricsPage:
    """The page, and what its last reader was told: rates are averages since then.

    Args:
        source: where the newest counts are.
    """

    def __init__(self, source: HasStats) -> None:
        self._source = source
        self._told = _Totals()

    def text(self) -> bytes:
        """The page; before the model is loaded it is empty."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._families))
        return generate_latest(registry)

    def _families(self) -> Iterator[Metric]:
        stats = self._source.stats
        if stats is None:
            return
        counters = stats.counters
        before, self._told = (
            self._told,
            _Totals(
                self._source.read_tokens,
                self._source.read_s,
                counters.completion_tokens,
                counters.generation_s,
            ),
        )
        yield from _llamacpp(stats, before, self._told)
        yield from _mlxcel(stats, self._source.refused)


class _Collector:
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()


def _llamacpp(stats: SchedulerStats, before: _Totals, now: _Totals) -> Iterator[Metric]:
    counters = stats.counters
    yield from _counter_families(
        "llamacpp:",
        {
            "prompt_tokens": ("Prompt tokens of finished requests", counters.prompt_tokens),
            "prompt_seconds": ("Seconds of reading them", now.read_s),
            "tokens_predicted": ("Tokens written", now.completion_tokens),
            "tokens_predicted_seconds": ("Seconds of writing", now.generation_s),
            "n_decode": (
                "Forwards of running answers",
                counters.decode_steps + counters.verify_rounds,
            ),
        },
    )
    yield from _gauge_families(
        "llamacpp:",
        {
            "prompt_tokens_seconds": (
                "Prompt tokens a second of reading, since the last look",
                _rate(now.read_tokens - before.read_tokens, now.read_s - before.read_s),
            ),
            "predicted_tokens_seconds": (
                "Tokens a second of an answer, since the last look",
                _rate(
                    now.completion_tokens - before.completion_tokens,
                    now.generation_s - before.generation_s,
                ),
            ),
            "n_busy_slots_per_decode": (
                "Answers that a step goes on with, averaged",
                _rate(counters.decode_tokens, counters.decode_steps + counters.verify_rounds),
            ),
            "requests_processing": ("Answers being written", len(stats.slots)),
            "requests_deferred": ("Requests that wait", stats.queue_depth),
        },
    )


def _mlxcel(stats: SchedulerStats, refused: int) -> Iterator[Metric]:
    yield from _counter_families("mlxcel_", _counts(stats.counters, refused))
    if stats.cache is not None:
        yield from _prompt_cache(stats.cache)
    finished = CounterMetricFamily(
        "mlxcel_requests_finished", "Answers that ended, by cause", labels=["cause"]
    )
    for cause, count in stats.counters.finished.items():
        finished.add_metric([cause.value], count)
    yield finished
    gauges = {
        "slots_total": ("Answers that can be written at a time", stats.parallel),
        "slots_available": ("Of these, free", stats.slots_free),
        "queue_depth": ("Requests that wait", stats.queue_depth),
        "queue_capacity": ("Requests that may wait", stats.queue_capacity),
        "batch_current_size": ("Answers being written", len(stats.slots)),
        "cache_pool_rows": ("Rows of KV that are allocated", stats.kv_rows),
        "cache_pool_positions": ("Token positions of each row", stats.kv_positions),
        "cache_pool_budget_positions": (
            "Token positions that may be allocated; 0: no bound",
            stats.kv_budget_positions or 0,
        ),
        "scrape_timestamp_seconds": ("When this page was made", time.time()),
    }
    yield from _gauge_families("mlxcel_", gauges)


def _prompt_cache(cache: CacheStats) -> Iterator[Metric]:
    counters = cache.counters
    counts = {
        "lookups": ("Prompts that were looked up", counters.lookups),
        "hits": ("Of these, how many began with something known", counters.hits),
        "misses": ("And how many did not", counters.lookups - counters.hits),
        "lookup_tokens": ("Tokens of the prompts that were looked up", counters.lookup_tokens),
        "prefix_tokens_reused": ("Of these, how many needed no forward", counters.hit_tokens),
        "donations": ("Answers that were remembered", counters.donations),
        "donated_tokens": ("Tokens whose KV was copied", counters.donated_tokens),
        "disk_tokens": ("Tokens whose KV came from a file", counters.disk_tokens),
        "evicted_bytes": ("Bytes dropped for others", counters.evicted_bytes),
        "expired_bytes": ("Bytes dropped because nobody used them", counters.expired_bytes),
        "faults": ("Copies and takeovers that failed", counters.faults),
    }
    yield from _counter_families("mlxcel_prompt_cache_", counts)
    yield _by_reason(
        "mlxcel_prompt_cache_evictions",
        "Runs of KV that were dropped, by reason",
        {
            "lru": counters.evictions_lru,
            "ttl": counters.evictions_ttl,
            "capacity": counters.evictions_capacity,
        },
    )
    yield _by_reason(
        "mlxcel_prompt_cache_rejects",
        "Runs of KV that were not kept or not taken over, by reason",
        {
            "oversized": counters.rejects_oversized,
            "prefix_too_short": counters.rejects_prefix_too_short,
        },
    )
    gauges = {
        "entries": ("Texts that are remembered", cache.entries),
        "tokens": ("Tokens whose KV is held", cache.tokens),
        "bytes": ("Bytes of it", cache.nbytes),
        "limit_bytes": ("Most bytes", cache.limits.max_bytes or 0),
        "file_bytes": ("Bytes of its files", cache.disk_bytes),
    }
    yield from _gauge_families("mlxcel_prompt_cache_", gauges)


def _counter_families(prefix: str, named: Named) -> Iterator[Metric]:
    for name, (text, value) in named.items():
        yield CounterMetricFamily(f"{prefix}{name}", text, value=value)


def _gauge_families(prefix: str, named: Named) -> Iterator[Metric]:
    for name, (text, value) in named.items():
        yield GaugeMetricFamily(f"{prefix}{name}", text, value=value)


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _counts(counters: Counters, refused: int) -> dict[str, tuple[str, float]]:
    ended = sum(counters.finished.values()) + counters.failed + counters.cancelled
    return {
        "requests": ("Requests taken", counters.requests),
        "requests_refused": ("Requests refused", counters.refused + refused),
        "requests_failed": ("Answers that broke off", counters.failed),
        "requests_cancelled": ("Answers nobody waited for", counters.cancelled),
        "prompt_tokens": ("Prompt tokens of finished requests", counters.prompt_tokens),
        "completion_tokens": ("Tokens written", counters.completion_tokens),
        "generation_time_seconds": ("Seconds of writing", counters.generation_s),
        "batch_sequences_started": ("Requests that got a slot", counters.started),
        "batch_sequences_completed": ("Requests that left theirs", ended),
        "batch_prefill_tokens": ("Prompt tokens forwarded", counters.prefill_tokens),
        "batch_prefill_chunks": ("Prompt pieces forwarded", counters.prefill_pieces),
        "batch_prefill_grants": ("Pieces of long prompts", counters.parked_pieces),
        "batch_decode_tokens": ("Tokens of decode steps", counters.decode_tokens),
        "batch_decode_steps": ("Decode steps", counters.decode_steps),
        "batch_decode_lookahead_steps": (
            "Decode steps submitted before the one before was read",
            counters.lookahead_steps,
        ),
        "verify_rounds": ("Forwards that checked a draft", counters.verify_rounds),
        "draft_tokens": ("Drafted tokens that were checked", counters.draft_tokens),
        "draft_tokens_accepted": (
            "Of these, how many were right",
            counters.draft_tokens_accepted,
        ),
        "batch_mixed_steps": ("Ticks that decoded and read prompts", counters.mixed_ticks),
        "batch_ticks": ("Ticks", counters.ticks),
        "preemptions": ("Answers that gave way", counters.preemptions),
    }
