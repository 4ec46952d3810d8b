"""A soak of mlxcel serve: mixed load with waiting requests, every answer checked, memory watched.

    python -m benchmarks.soak                    # 10 minutes
    python -m benchmarks.soak --minutes 1 --clients 8

Before the load each prompt is answered alone, greedily, and with a seed. During it greedy answers
of any length must begin these ones; where the two best tokens were nearer than the model's float
rounding, another answer is a near-tie and shown. Seeded answers are compared too and counted apart.
Clients also go away in mid-stream and send what must be refused. It exits with 1 after a wrong
answer, a 5xx, a hang or a refusal with another status than the right one.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import aiohttp
import psutil

from benchmarks import server_process
from benchmarks.server_process import Server
from benchmarks.soak_answers import Known, Verdict, known_answers
from benchmarks.starter_weights import starter_weights
from benchmarks.tables import head, note, row

SAMPLE_S = 5
PATIENCE_S = 300
CACHE_BYTES = 256 * 2**20
"""Small enough to be full soon, so that eviction runs all the time."""

BAD: tuple[tuple[int, str, dict[str, object]], ...] = (
    (400, "/v1/completions", {"prompt": "x", "max_tokens": "many"}),
    (400, "/v1/completions", {"prompt": "x", "no_such_field": 1}),
    (400, "/v1/completions", {"prompt": "x", "temperature": -1}),
    (400, "/v1/completions", {"prompt": [10**9]}),
    (400, "/v1/completions", {"prompt": "word " * 20_000}),
    (400, "/v1/chat/completions", {"messages": "hello"}),
    (400, "/v1/chat/completions", {"messages": [], "tools": [{}]}),
    (404, "/v1/chat/completions", {"model": "nobody", "messages": []}),
    (404, "/v1/nothing", {}),
)
"""Status, path and body of requests that must be refused."""


class Soak:
    """The load and what it found.

    Args:
        session: to the server.
        known: prompts with their right answers.
        ends_s: `time.monotonic` at which no more requests are sent.
    """

    def __init__(self, session: aiohttp.ClientSession, known: list[Known], ends_s: float) -> None:
        self._session = session
        self._known = known
        self._ends_s = ends_s
        self.counts: Counter[str] = Counter()
        self.shown: list[str] = []
        """Near-ties, wrong answers and wrong statuses."""

    async def work(self, seed: int) -> None:
        """One client: request after request until the time is over."""
        chance = random.Random(seed)
        kinds = (self._greedy, self._seeded, self._vanish, self._bad)
        while time.monotonic() < self._ends_s:
            kind = chance.choices(kinds, weights=(60, 15, 15, 10))[0]
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await kind(chance)
            except TimeoutError:
                self._fault("hang", f"no answer within {PATIENCE_S} s")
            except aiohttp.ClientError as error:
                self._fault("broken connection", repr(error))

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong."""
        return not any(name.startswith("FAULT") for name in self.counts)

    async def _greedy(self, chance: random.Random) -> None:
        known = chance.choice(self._known)
        length = chance.randint(1, known.max_tokens)
        body = known.greedy_body(length, stream=chance.random() < 0.5)
        text = await self._text(body)
        if text is not None:
            self._note("greedy", known.compare(text, length))

    async def _seeded(self, chance: random.Random) -> None:
        known = chance.choice(self._known)
        text = await self._text(known.seeded_body(stream=chance.random() < 0.5))
        if text is not None:
            self.counts["seeded, " + ("equal" if text == known.seeded else "another text")] += 1

    async def _vanish(self, chance: random.Random) -> None:
        known = chance.choice(self._known)
        body = known.greedy_body(known.max_tokens, stream=chance.random() < 0.7)
        try:
            async with asyncio.timeout(chance.uniform(0.01, 3)):
                await self._text(body)
        except TimeoutError:
            self.counts["client went away"] += 1
        else:
            self.counts["answered before its client went away"] += 1

    async def _bad(self, chance: random.Random) -> None:
        status, path, body = chance.choice(BAD)
        async with self._session.post(path, json=body) as response:
            await response.read()
        if response.status == status:
            self.counts["refused as it should be"] += 1
        else:
            self._fault("status", f"{path} {str(body)[:60]} gave {response.status}, not {status}")

    async def _text(self, body: dict[str, object]) -> str | None:
        async with self._session.post("/v1/completions", json=body) as response:
            answer = await response.text()
        if response.status != 200:
            self._fault(str(response.status), answer[:300])
            return None
        text = server_process.completion_text(answer)
        if text is None:
            self._fault("broken stream", answer[-300:])
        return text

    def _note(self, kind: str, verdict: Verdict) -> None:
        if verdict.is_wrong:
            self._fault("wrong answer", verdict.text)
            return
        self.counts[f"{kind}, {'near-tie' if verdict.text else 'equal'}"] += 1
        if verdict.text:
            self._show(f"near-tie: {verdict.text}")

    def _fault(self, name: str, text: str) -> None:
        self.counts[f"FAULT {name}"] += 1
        self._show(f"FAULT {name}: {text}")

    def _show(self, line: str) -> None:
        if line not in self.shown:
            self.shown.append(line)
            print(f"<!-- {line} -->", flush=True)


async def watch_memory(server: Server, ends_s: float) -> list[tuple[float, float]]:
    """(Minute, MiB resident) every few seconds; prints each minute's."""
    process, started = psutil.Process(server.pid), time.monotonic()
    samples: list[tuple[float, float]] = []
    waiting: list[float] = []
    printed = -1
    while (now := time.monotonic()) < ends_s:
        minute = (now - started) / 60
        samples.append((minute, process.memory_info().rss / 2**20))
        waiting.append(server_process.metric(server, "mlxcel_queue_depth"))
        if int(minute) > printed:
            printed = int(minute)
            row(str(printed), samples[-1][1], f"{max(waiting):.0f}")
            waiting = []
        await asyncio.sleep(SAMPLE_S)
    return samples


def growth(samples: list[tuple[float, float]]) -> float:
    """MiB a minute over the second half: the slope of the least squares line."""
    half = samples[len(samples) // 2 :]
    mean_t = sum(t for t, _ in half) / len(half)
    mean_m = sum(m for _, m in half) / len(half)
    spread = sum((t - mean_t) ** 2 for t, _ in half)
    return sum((t - mean_t) * (m - mean_m) for t, m in half) / spread if spread else 0.0


async def soak(server: Server, minutes: float, clients: int, prompts: int) -> bool:
    """Run it and print its report; whether all was well."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        base_url=server.url, connector=connector, timeout=timeout
    ) as session:
        known = await known_answers(session, prompts)
        print(f"{len(known)} prompts answered alone", flush=True)
        head("Memory", "minute", "resident (MiB)", "most requests that waited")
        ends_s = time.monotonic() + 60 * minutes
        run = Soak(session, known, ends_s)
        watch = asyncio.create_task(watch_memory(server, ends_s))
        await asyncio.gather(*(run.work(seed) for seed in range(clients)))
        samples = await watch
        again = await known_answers(session, prompts)
    _report(server, run, samples)
    busy = await _until_free(server)
    row("slots still busy, requests still waiting", f"{busy:.0f}")
    same = sum(
        a.greedy == b.greedy and a.seeded == b.seeded for a, b in zip(known, again, strict=True)
    )
    row("prompts answered alone again, equal", f"{same} of {len(known)}")
    return run.is_clean and busy == 0 and same == len(known)


def _report(server: Server, run: Soak, samples: list[tuple[float, float]]) -> None:
    head("Soak", "what", "figure")
    for name, count in sorted(run.counts.items()):
        row(name, str(count))
    resident = [mib for _, mib in samples]
    row("resident at first, at most, at last (MiB)",
        f"{resident[0]:.0f}, {max(resident):.0f}, {resident[-1]:.0f}")  # fmt: skip
    row("growth over the second half (MiB a minute)", growth(samples))
    row("tracebacks in the log", str(server.log.read_text().count("Traceback")))


async def _until_free(server: Server) -> float:
    """Rows and queued requests that are left when the dust settled."""
    names = ("mlxcel_batch_current_size", "mlxcel_queue_depth")
    left = 0.0
    for _ in range(100):
        left = sum(server_process.metric(server, name) for name in names)
        if not left:
            break
        await asyncio.sleep(0.1)
    return left


def main() -> None:
    """Run the soak; the exit status says whether it was clean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=12, help="at a time (default: 12)")
    parser.add_argument("--parallel", type=int, default=4, help="slots (default: 4)")
    parser.add_argument("--prompts", type=int, default=24, help="different ones (default: 24)")
    parser.add_argument("--serve-flags", default="", help="more flags of mlxcel serve")
    options = parser.parse_args()
    server_process.end_children_on_signals()
    model: Path = starter_weights().dense
    flags = ["--parallel", str(options.parallel), "--prompt-cache-bytes", str(CACHE_BYTES)]
    with server_process.mlxcel(model, *flags, *options.serve_flags.split()) as server:
        clean = asyncio.run(soak(server, options.minutes, options.clients, options.prompts))
        note(
            "Clean." if clean else f"NOT CLEAN; the log's end:\n\n{server.log.read_text()[-2000:]}"
        )
    raise SystemExit(0 if clean else 1)


if __name__ == "__main__":
    main()
