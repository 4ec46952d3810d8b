"""``/metrics``: every family of llama.cpp's and ours, and rates since the last look."""

import re
from dataclasses import dataclass

import pytest

from engine.prompt_cache.limits import CacheCounters, CacheLimits, CacheStats
from engine.scheduler.queue import Priority
from engine.scheduler.stats import Counters, SchedulerPhase, SchedulerStats
from mlxcel_cli.serve.metrics import MetricsPage

LLAMA = {
    "prompt_tokens_total", "prompt_seconds_total", "tokens_predicted_total",
    "tokens_predicted_seconds_total", "n_decode_total", "n_busy_slots_per_decode",
    "prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing",
    "requests_deferred",
}  # fmt: skip
OURS = {
    "requests_total", "prompt_tokens_total", "completion_tokens_total",
    "generation_time_seconds_total", "slots_total", "slots_available", "queue_depth",
    "batch_sequences_started_total", "batch_sequences_completed_total",
    "batch_prefill_tokens_total", "batch_decode_tokens_total", "batch_decode_steps_total",
    "batch_decode_lookahead_steps_total", "batch_prefill_chunks_total", "batch_mixed_steps_total",
    "batch_prefill_grants_total", "batch_current_size", "cache_pool_rows", "cache_pool_positions",
    "cache_pool_budget_positions", "verify_rounds_total", "draft_tokens_total",
    "draft_tokens_accepted_total", "preemptions_total", "requests_refused_total",
    "prompt_cache_hits_total", "prompt_cache_misses_total",
    "prompt_cache_prefix_tokens_reused_total", 'prompt_cache_evictions_total{reason="lru"}',
    'prompt_cache_evictions_total{reason="ttl"}', 'prompt_cache_evictions_total{reason="capacity"}',
    'prompt_cache_rejects_total{reason="oversized"}',
    'prompt_cache_rejects_total{reason="prefix_too_short"}', "prompt_cache_bytes",
    "prompt_cache_entries",
}  # fmt: skip


@dataclass
class Source:
    stats: SchedulerStats | None = None
    refused: int = 0
    read_tokens: int = 0
    read_s: float = 0.0


def stats(counters, cache=None):
    return SchedulerStats(
        phase=SchedulerPhase.SERVING, parallel=4, slots=(), queue_depths=dict.fromkeys(Priority, 0),
        queue_capacity=32, blocked=None, counters=counters, kv_rows=0, kv_positions=0,
        kv_budget_positions=None,
        cache=cache,
    )  # fmt: skip


def values(page):
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_before_the_model_is_there_the_page_is_empty():
    assert MetricsPage(Source()).text() == b""


def test_every_family_is_there_and_llama_cpp_s_come_first(server):
    server.complete("Hello", max_tokens=2)
    text = server.ask("GET", "/metrics").body
    names = set(values(text))
    assert {name.removeprefix("llamacpp:") for name in names if name.startswith("llama")} == LLAMA
    assert {name for name in OURS if f"mlxcel_{name}" not in names} == set()
    order = re.findall(r"^# HELP (\w+)", text.decode(), re.MULTILINE)
    assert sorted(order, key=lambda name: not name.startswith("llamacpp")) == order


def test_rates_are_averages_since_the_last_look():
    source = Source(stats(Counters(completion_tokens=100, generation_s=10.0)), 0, 50, 1.0)
    page = MetricsPage(source)

    def rates():
        told = values(page.text())
        return told["llamacpp:prompt_tokens_seconds"], told["llamacpp:predicted_tokens_seconds"]

    assert rates() == (50, 10)
    source.stats = stats(Counters(completion_tokens=130, generation_s=11.0))
    source.read_tokens, source.read_s = 150, 1.5
    assert rates() == (200, 30)
    assert rates() == (0, 0)


def test_drafts_refusals_and_the_prompt_cache_are_counted():
    counters = Counters(
        verify_rounds=3, draft_tokens=12, draft_tokens_accepted=7, refused=2, decode_steps=5,
        decode_tokens=16,
    )  # fmt: skip
    cached = CacheCounters(
        lookups=9, hits=4, hit_tokens=80, evictions_lru=1, evictions_ttl=2, evictions_capacity=3,
        rejects_oversized=4, rejects_prefix_too_short=5,
    )  # fmt: skip
    cache = CacheStats(CacheLimits(), cached, entries=1, tokens=2, nbytes=3, pending=0)
    told = values(MetricsPage(Source(stats(counters, cache), refused=1)).text())
    expected = {
        "mlxcel_verify_rounds_total": 3, "mlxcel_draft_tokens_total": 12,
        "mlxcel_draft_tokens_accepted_total": 7, "mlxcel_requests_refused_total": 3,
        "llamacpp:n_decode_total": 8, "llamacpp:n_busy_slots_per_decode": 2,
        "mlxcel_prompt_cache_misses_total": 5,
        "mlxcel_prompt_cache_prefix_tokens_reused_total": 80,
        'mlxcel_prompt_cache_evictions_total{reason="lru"}': 1,
        'mlxcel_prompt_cache_evictions_total{reason="ttl"}': 2,
        'mlxcel_prompt_cache_evictions_total{reason="capacity"}': 3,
        'mlxcel_prompt_cache_rejects_total{reason="oversized"}': 4,
        'mlxcel_prompt_cache_rejects_total{reason="prefix_too_short"}': 5,
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected


@pytest.mark.parametrize("field", ["verify_rounds", "draft_tokens", "draft_tokens_accepted"])
def test_what_a_drafting_server_did_is_in_its_metrics(start_server, field):
    server = start_server(
        "--draft-kind", "prompt-lookup", "--prompt-lookup-policy", "fixed", "--no-warmup"
    )
    before = server.metric(f"mlxcel_{field}_total")
    server.complete("abcabcabcabc", max_tokens=60, temperature=0, logit_bias={"97": 100})
    server.wait_for(lambda: server.metric(f"mlxcel_{field}_total") > before)
