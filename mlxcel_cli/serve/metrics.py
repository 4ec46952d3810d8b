"""The figures of ``/metrics``: llama.cpp's names first, then ours."""

import time
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.prompt_cache.limits import CacheStats
from engine.scheduler.stats import Counters, SchedulerStats

CONTENT_TYPE = CONTENT_TYPE_LATEST


class HasStats(Protocol):
    """Where the newest counts are."""

    stats: SchedulerStats | None


def metrics_text(source: HasStats) -> bytes:
    """The page; before the model is loaded it is empty."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(source))
    return generate_latest(registry)


class _Collector:
    def __init__(self, source: HasStats) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        stats = self._source.stats
        if stats is not None:
            yield from _llamacpp(stats)
            yield from _mlxcel(stats)


def _llamacpp(stats: SchedulerStats) -> Iterator[Metric]:
    counters = stats.counters
    counts = {
        "prompt_tokens": ("Prompt tokens of finished requests", counters.prompt_tokens),
        "tokens_predicted": ("Tokens written", counters.completion_tokens),
        "tokens_predicted_seconds": ("Seconds of writing", counters.generation_s),
        "n_decode": ("Forwards of running answers", counters.decode_steps),
    }
    for name, (text, value) in counts.items():
        yield CounterMetricFamily(f"llamacpp:{name}", text, value=value)
    rate = counters.completion_tokens / counters.generation_s if counters.generation_s else 0.0
    gauges = {
        "predicted_tokens_seconds": ("Tokens a second of an answer, averaged", rate),
        "requests_processing": ("Answers being written", len(stats.slots)),
        "requests_deferred": ("Requests that wait", stats.queue_depth),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(f"llamacpp:{name}", text, value=value)


def _mlxcel(stats: SchedulerStats) -> Iterator[Metric]:
    for name, (text, value) in _counts(stats.counters).items():
        yield CounterMetricFamily(f"mlxcel_{name}", text, value=value)
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
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(f"mlxcel_{name}", text, value=value)


def _prompt_cache(cache: CacheStats) -> Iterator[Metric]:
    counters = cache.counters
    counts = {
        "lookups": ("Prompts that were looked up", counters.lookups),
        "hits": ("Of these, how many began with something known", counters.hits),
        "lookup_tokens": ("Tokens of the prompts that were looked up", counters.lookup_tokens),
        "hit_tokens": ("Of these, how many needed no forward", counters.hit_tokens),
        "donations": ("Answers that were remembered", counters.donations),
        "donated_tokens": ("Tokens whose KV was copied", counters.donated_tokens),
        "disk_tokens": ("Tokens whose KV came from a file", counters.disk_tokens),
        "evicted_bytes": ("Bytes dropped for others", counters.evicted_bytes),
        "expired_bytes": ("Bytes dropped because nobody used them", counters.expired_bytes),
        "faults": ("Copies and takeovers that failed", counters.faults),
    }
    for name, (text, value) in counts.items():
        yield CounterMetricFamily(f"mlxcel_prompt_cache_{name}", text, value=value)
    gauges = {
        "entries": ("Texts that are remembered", cache.entries),
        "tokens": ("Tokens whose KV is held", cache.tokens),
        "bytes": ("Bytes of it", cache.nbytes),
        "limit_bytes": ("Most bytes", cache.limits.max_bytes or 0),
        "file_bytes": ("Bytes of its files", cache.disk_bytes),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(f"mlxcel_prompt_cache_{name}", text, value=value)


def _counts(counters: Counters) -> dict[str, tuple[str, float]]:
    ended = sum(counters.finished.values()) + counters.failed + counters.cancelled
    return {
        "requests": ("Requests taken", counters.requests),
        "requests_refused": ("Requests refused", counters.refused),
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
        "batch_mixed_steps": ("Ticks that decoded and read prompts", counters.mixed_ticks),
        "batch_ticks": ("Ticks", counters.ticks),
        "preemptions": ("Answers that gave way", counters.preemptions),
    }
