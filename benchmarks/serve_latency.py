"""Times the first token of a short request while others decode, and the event loop's lag."""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import server_process
from benchmarks.load import Client, Reply, closed_loop, ours, running, theirs
from benchmarks.serve_speed import Plan, peer_flags
from benchmarks.tables import head, note, percentile, row
from benchmarks.texts import Texts

OTHERS = 4
LONG_PROMPT = 4000
SHORT_PROMPT = 16
ALLOWED_MS = 20
STREAMS = 64
PROBES = 5
"""Of a round and situation."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Milliseconds of one server in one situation."""

    idle: list[float]
    """To the first token of a short request alone: its own prefill, the draw and HTTP."""
    gaps: list[float]
    """Between two tokens of one of the others."""
    busy: list[float]
    """To the first token of a short request while the others decode."""

    @property
    def tick(self) -> float:
        """What a token of the others takes, in the median."""
        return median(self.gaps)

    def add(self, other: "FirstTokens") -> None:
        """Take another round's figures in."""
        self.idle.extend(other.idle)
        self.gaps.extend(other.gaps)
        self.busy.extend(other.busy)

    @property
    def bound(self) -> float:
        """One tick, the own prefill and what is allowed."""
        return self.tick + median(self.idle) + ALLOWED_MS


async def first_token(plan: Plan) -> None:
    """Time to first token of short requests while four others decode."""
    head(
        f"TTFT in ms of a {SHORT_PROMPT}-token request while {OTHERS} others decode "
        f"(bound: tick + alone + {ALLOWED_MS})",
        "situation", "server", "alone p50", "tick p50", "TTFT p50", "TTFT p90", "bound",
        "p50 over bound", "of theirs",
    )  # fmt: skip
    slots = OTHERS + 2
    with (
        server_process.mlxcel(plan.model, "--parallel", str(slots)) as mine,
        server_process.mlx_lm(plan.model, *peer_flags(plan, slots)) as other,
    ):
        async with ours(mine) as client, theirs(other) as peer:
            for prefilling in (False, True):
                what = (
                    f"{plan.prompt_tokens or LONG_PROMPT}-token prompt in prefill"
                    if prefilling
                    else "decode only"
                )
                found = [FirstTokens([], [], []) for _ in (peer, client)]
                for turn in range(plan.rounds):
                    for one, times in zip((peer, client), found, strict=True):
                        times.add(await _measured(plan, one, turn, prefilling=prefilling))
                theirs_ms = median(found[0].busy)
                for one, times in zip((peer, client), found, strict=True):
                    middle = median(times.busy)
                    row(
                        what, one.server.name, median(times.idle), times.tick, middle,
                        percentile(times.busy, 90), times.bound, middle - times.bound,
                        f"{middle / theirs_ms:.3f}",
                    )  # fmt: skip


async def _measured(plan: Plan, client: Client, turn: int, *, prefilling: bool) -> FirstTokens:
    """One round; both servers get the same requests with the same random pauses."""
    seed = 2 * turn + prefilling
    texts, chance = Texts(plan.model, seed), random.Random(seed)
    idle = [await _probe(client, texts) for _ in range(PROBES + 1)][1:]
    async with running(client, [texts.of(32) for _ in range(OTHERS)], 3000) as others:
        begun = [len(reply.text_at) for reply in others]
        await asyncio.sleep(2)
        gaps = [
            gap * 1e3
            for reply, start in zip(others, begun, strict=True)
            for gap in reply.gaps_s[start:]
        ]
        if prefilling:
            busy = await _during_long_prompt(
                client, texts, chance, (PROBES, plan.prompt_tokens or LONG_PROMPT)
            )
        else:
            busy = []
            for _ in range(PROBES):
                await asyncio.sleep(chance.uniform(0.2, 0.7))
                busy.append(await _probe(client, texts))
    await asyncio.sleep(1)  # until the streams' rows are free
    return FirstTokens(idle, gaps, busy)


async def _during_long_prompt(
    client: Client, texts: Texts, chance: random.Random, counts: tuple[int, int]
) -> list[float]:
    """Times during prefills of a long prompt (``counts``: probes, its tokens).

    Only probes that were sent while it was being read count.
    """
    probes, long_tokens = counts
    busy: list[float] = []
    long, task = Reply(), None
    try:
        while len(busy) < probes:
            if task is None or task.done():
                long = Reply()
                prompt = texts.of(long_tokens)
                task = asyncio.create_task(client.complete(prompt, 1, long))
            await asyncio.sleep(chance.uniform(0.2, 0.7))
            if not long.text_at and long.end_s is None:
                busy.append(await _probe(client, texts))
            if task.done():
                task.result()
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return busy


async def _probe(client: Client, texts: Texts) -> float:
    """One token only, so that neither server may hold text back."""
    return (await client.complete(texts.of(SHORT_PROMPT), 1)).ttft_s * 1e3


async def loop(plan: Plan) -> None:
    """How late the server's event loop runs under many streams, and what a token costs it."""
    title = f"Event loop, {STREAMS} concurrent streams of {plan.new_tokens} tokens"
    flags = ("--parallel", str(STREAMS), "--max-queue-depth", str(STREAMS))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "watch.jsonl"
        with server_process.mlxcel(plan.model, *flags, watch=file) as server:
            quiet = await _health(server, 3)
            async with ours(server) as client:
                texts = Texts(plan.model)
                await closed_loop(client, [(texts.of(32), 8)] * OTHERS, OTHERS)
                head(title, "figure", "p50", "p99", "most")
                row("GET /health, idle (ms)", *_points(quiet))
                for turn in range(plan.rounds):
                    await _loop_round(plan, client, file, turn)


async def _loop_round(plan: Plan, client: Client, file: Path, turn: int) -> None:
    texts = Texts(plan.model, seed=100 + turn)
    asks = [(texts.of(32), plan.new_tokens) for _ in range(STREAMS)]
    await asyncio.sleep(1.1)
    began = time.time()
    probe = asyncio.create_task(_health(client.server, 3600))
    seconds, replies = await closed_loop(client, asks, STREAMS)
    ended = time.time()
    probe.cancel()
    latencies = await probe
    await asyncio.sleep(1.1)  # the watch writes once a second
    lines: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    inside = [line for line in lines if began < line["at"] < ended]
    if len(inside) < 2:
        note("too short to measure: more --new-tokens")
        return
    lags = [lag for line in inside for lag in line["lags_ms"]]
    row(f"loop lag, round {turn + 1} (ms)", *_points(lags))
    row(f"GET /health from another process, round {turn + 1} (ms)", *_points(latencies))
    before = [line for line in lines if line["at"] <= began][-1]
    after = next((line for line in lines if line["at"] >= ended), lines[-1])
    tokens = sum(reply.tokens for reply in replies)
    loop_s = after["loop_s"] - before["loop_s"]
    print(
        f"| {tokens / seconds:.1f} tokens/s; the loop's thread used {loop_s / tokens * 1e6:.0f} µs "
        f"of CPU for a token of a client, {loop_s / (after['at'] - before['at']):.1%} of a core "
        "| | | |",
        flush=True,
    )


async def _health(server: server_process.Server, seconds: float) -> list[float]:
    """Milliseconds of /health; when cancelled, those so far."""
    address = server.url.removeprefix("http://")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.health_probe", address, str(seconds),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, _ = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        out, _ = await process.communicate()
    return list(json.loads(out))


def _points(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), percentile(values, 99), max(values)
