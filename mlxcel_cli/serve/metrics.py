"""The figures of ``/metrics``: llama.cpp's names first, then ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.prompt_cache.limits import CacheStats
from engine.scheduler.stats import SchedulerStats

if TYPE_CHECKING:
    from mlxcel_cli.serve.worker import EngineWorker

CONTENT_TYPE = CONTENT_TYPE_LATEST

Table = Mapping[str, tuple[str, float]]
"""A family's name to its help text and value."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """What the rates are made of, at the scrape before."""

    read_tokens: int = 0
    read_s: float = 0.0
    completion_tokens: int = 0
    generation_s: float = 0.0


class MetricsPage:
    """The page, and what its last scrape had: rates are averages since then.

    Args:
        source: where the newest counts are.
    """

    def __init__(self, source: EngineWorker) -> None:
        self._source = source
        self._scraped = _Totals()

    def text(self) -> bytes:
        """The page; before the model is loaded it is empty."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._families))
        return generate_latest(registry)

    def _families(self) -> Iterator[Metric]:
        source, stats = self._source, self._source.stats
        if stats is None:
            return
        before, counters = self._scraped, stats.counters
        self._scraped = _Totals(
            source.read_tokens, source.read_s, counters.completion_tokens, counters.generation_s
        )
        yield from _llamacpp(stats, before, self._scraped)
        yield from _requests(stats, source.refused)
        yield from _batch(stats)
        if stats.cache is not None:
            yield from _prompt_cache(stats.cache)


class _Collector:
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self.collect = families


def _llamacpp(stats: SchedulerStats, before: _Totals, now: _Totals) -> Iterator[Metric]:
    counters = stats.counters
    forwards = counters.decode_steps + counters.verify_rounds
    yield from _counters("llamacpp:", {
        "prompt_tokens": ("Prompt tokens of finished requests", counters.prompt_tokens),
        "prompt_seconds": ("Seconds of prefill", now.read_s),
        "tokens_predicted": ("Generated tokens", now.completion_tokens),
        "tokens_predicted_seconds": ("Seconds of generation", now.generation_s),
        "n_decode": ("Decode and verify forwards", forwards),
    })  # fmt: skip
    yield from _gauges("llamacpp:", {
        "prompt_tokens_seconds": (
            "Prefill tokens per second, since the last scrape",
            _rate(now.read_tokens - before.read_tokens, now.read_s - before.read_s),
        ),
        "predicted_tokens_seconds": (
            "Generated tokens per second of a request, since the last scrape",
            _rate(
                now.completion_tokens - before.completion_tokens,
                now.generation_s - before.generation_s,
            ),
        ),
        "n_busy_slots_per_decode": (
            "Average number of busy slots per decode forward",
            _rate(counters.decode_tokens, forwards),
        ),
        "requests_processing": ("Requests running", len(stats.slots)),
        "requests_deferred": ("Requests waiting", stats.queue_depth),
    })  # fmt: skip


def _requests(stats: SchedulerStats, refused: int) -> Iterator[Metric]:
    counters = stats.counters
    ended = sum(counters.finished.values()) + counters.failed + counters.cancelled
    yield from _counters("mlxcel_", {
        "requests": ("Requests accepted", counters.requests),
        "requests_refused": ("Requests refused", counters.refused + refused),
        "requests_failed": ("Requests that failed", counters.failed),
        "requests_cancelled": ("Requests whose client left", counters.cancelled),
        "prompt_tokens": ("Prompt tokens of finished requests", counters.prompt_tokens),
        "completion_tokens": ("Generated tokens", counters.completion_tokens),
        "generation_time_seconds": ("Seconds of generation", counters.generation_s),
        "batch_sequences_started": ("Requests that got a slot", counters.started),
        "batch_sequences_completed": ("Requests that freed their slot", ended),
        "preemptions": ("Requests preempted", counters.preemptions),
    })  # fmt: skip
    finished = {cause.value: count for cause, count in counters.finished.items()}
    yield _labelled("mlxcel_requests_finished", "Requests finished, by cause", "cause", finished)
    yield from _gauges("mlxcel_", {
        "slots_total": ("Slots", stats.parallel),
        "slots_available": ("Slots free", stats.slots_free),
        "queue_depth": ("Requests waiting", stats.queue_depth),
        "queue_capacity": ("Requests that may wait", stats.queue_capacity),
        "batch_current_size": ("Requests running", len(stats.slots)),
        "scrape_timestamp_seconds": ("When this page was made", time.time()),
    })  # fmt: skip


def _batch(stats: SchedulerStats) -> Iterator[Metric]:
    counters = stats.counters
    yield from _counters("mlxcel_", {
        "batch_prefill_tokens": ("Prompt tokens forwarded", counters.prefill_tokens),
        "batch_prefill_chunks": ("Prompt chunks forwarded", counters.prefill_chunks),
        "batch_prefill_grants": ("Chunks of long prompts forwarded", counters.long_chunks),
        "batch_decode_tokens": ("Tokens of decode steps", counters.decode_tokens),
        "batch_decode_steps": ("Decode steps", counters.decode_steps),
        "batch_decode_lookahead_steps": (
            "Decode steps submitted before the previous one was read", counters.lookahead_steps
        ),
        "verify_rounds": ("Forwards that verified drafts", counters.verify_rounds),
        "draft_tokens": ("Draft tokens verified", counters.draft_tokens),
        "draft_tokens_accepted": ("Draft tokens accepted", counters.draft_tokens_accepted),
        "batch_mixed_steps": ("Ticks with both decode and prefill", counters.mixed_ticks),
        "batch_ticks": ("Ticks", counters.ticks),
    })  # fmt: skip
    yield from _gauges("mlxcel_", {
        "cache_pool_rows": ("KV rows allocated", stats.kv_rows),
        "cache_pool_positions": ("Token positions of each KV row", stats.kv_positions),
        "cache_pool_budget_positions": (
            "Token positions that KV may have; 0: no bound", stats.kv_budget_positions or 0
        ),
    })  # fmt: skip


def _prompt_cache(cache: CacheStats) -> Iterator[Metric]:
    counters, prefix = cache.counters, "mlxcel_prompt_cache_"
    yield from _counters(prefix, {
        "lookups": ("Prompts looked up", counters.lookups),
        "hits": ("Prompts with a cached prefix", counters.hits),
        "misses": ("Prompts without a cached prefix", counters.lookups - counters.hits),
        "lookup_tokens": ("Tokens of the prompts looked up", counters.lookup_tokens),
        "prefix_tokens_reused": ("Prompt tokens found in the cache", counters.hit_tokens),
        "donations": ("Requests whose KV was cached", counters.exports),
        "donated_tokens": ("Tokens whose KV was copied into the cache", counters.exported_tokens),
        "disk_tokens": ("Prompt tokens loaded from files", counters.disk_tokens),
        "evicted_bytes": ("Bytes evicted to make room", counters.evicted_bytes),
        "expired_bytes": ("Bytes evicted after their time to live", counters.expired_bytes),
        "faults": ("KV copies that failed", counters.faults),
    })  # fmt: skip
    evictions = {
        "lru": counters.evictions_lru,
        "ttl": counters.evictions_ttl,
        "capacity": counters.evictions_capacity,
    }
    yield _labelled(f"{prefix}evictions", "Entries evicted, by reason", "reason", evictions)
    rejects = {
        "oversized": counters.rejects_oversized,
        "prefix_too_short": counters.rejects_prefix_too_short,
    }
    text = "Entries not cached or not used, by reason"
    yield _labelled(f"{prefix}rejects", text, "reason", rejects)
    yield from _gauges(prefix, {
        "entries": ("Entries in the cache", cache.entries),
        "tokens": ("Tokens whose KV is cached", cache.tokens),
        "bytes": ("Bytes of cached KV", cache.nbytes),
        "limit_bytes": ("Most bytes of cached KV", cache.limits.max_bytes or 0),
        "file_bytes": ("Bytes of cache files", cache.disk_bytes),
    })  # fmt: skip


def _counters(prefix: str, table: Table) -> Iterator[Metric]:
    for name, (text, value) in table.items():
        yield CounterMetricFamily(f"{prefix}{name}", text, value=value)


def _gauges(prefix: str, table: Table) -> Iterator[Metric]:
    for name, (text, value) in table.items():
        yield GaugeMetricFamily(f"{prefix}{name}", text, value=value)


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
