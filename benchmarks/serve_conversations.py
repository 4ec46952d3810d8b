"""Conversations that overflow the prompt cache: memory against its bound, and what is reused."""

import asyncio
import json
import random
from collections.abc import Sequence

import psutil

from benchmarks import server_process
from benchmarks.load import Client, Reply, ours
from benchmarks.serve_speed import Plan
from benchmarks.server_process import Server
from benchmarks.tables import head, note, row
from benchmarks.texts import Texts

CONVERSATIONS = 64
CACHE_BYTES = 256 * 2**20
FIRST_TURN_TOKENS = 200
QUESTION_TOKENS = 24
SLOTS = 4
SAMPLE_S = 0.2
MIB = 2**20


async def conversations(plan: Plan) -> None:
    """As many turns as there are rounds, in random order; each says all that was said before."""
    bound = plan.prompt_cache_bytes or CACHE_BYTES
    flags = ("--parallel", str(SLOTS), "--prompt-cache-bytes", str(bound))
    with server_process.mlxcel(plan.model, *flags) as server:
        async with ours(server) as client:
            run = _Run(client, plan)
            await run.warm()
            watch = _Watch(server)
            watching = asyncio.create_task(watch.go_on())
            head(
                f"{CONVERSATIONS} conversations of {plan.rounds} turns in random order, {SLOTS} at "
                f"a time, {plan.new_tokens} new tokens, --prompt-cache-bytes {bound / MIB:.0f} MiB",
                "answers", "resident (MiB)", "cache (MiB)", "prompt tokens", "cached",
                "said before", "cached of said before",
            )  # fmt: skip
            for part in run.parts():
                await run.answer(part)
                watch.look()
                run.show(watch)
            watching.cancel()
    watch.report(bound)


class _Conversation:
    """Its messages, and how many tokens its last turn came to."""

    __slots__ = ("lock", "messages", "tokens")

    def __init__(self, messages: list[dict[str, str]]) -> None:
        self.messages = messages
        self.tokens = 0
        self.lock = asyncio.Lock()


class _Run:
    """The load, and its counts so far."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._new = plan.new_tokens
        self._turns = plan.rounds
        self._texts = Texts(plan.model)
        self._first = plan.prompt_tokens or FIRST_TURN_TOKENS
        self._all = [self._begun() for _ in range(CONVERSATIONS)]
        self._answers = self._prompt_tokens = self._cached = self._said = 0

    def _begun(self) -> _Conversation:
        first = self._texts.of(self._first)
        return _Conversation([{"role": "user", "content": f"Read this:{first}. Continue."}])

    def parts(self) -> list[list[_Conversation]]:
        """Whose turn it is, in as many parts as there are turns; every order is as likely."""
        order = self._all * self._turns
        random.Random(1).shuffle(order)
        size = len(self._all)
        return [order[at : at + size] for at in range(0, len(order), size)]

    async def warm(self) -> None:
        """Fill all slots once, so that what they take is there before memory is looked at."""
        longest = self._first + self._turns * (QUESTION_TOKENS + self._new)
        texts = [self._texts.of(longest) for _ in range(SLOTS)]
        one = {"cache_prompt": False}
        await asyncio.gather(*(self._client.complete(text, 8, **one) for text in texts))

    async def answer(self, part: Sequence[_Conversation]) -> None:
        """These turns, so many at a time as there are slots."""
        waiting = list(reversed(part))

        async def work() -> None:
            while waiting:
                one = waiting.pop()
                async with one.lock:
                    await self._turn(one)

        await asyncio.gather(*(work() for _ in range(SLOTS)))

    async def _turn(self, one: _Conversation) -> None:
        reply: Reply = await self._client.chat(one.messages, self._new)
        question = f"And{self._texts.of(QUESTION_TOKENS)}?"
        one.messages.append({"role": "assistant", "content": reply.text})
        one.messages.append({"role": "user", "content": question})
        prompt = int(reply.usage["prompt_tokens"])
        self._answers += 1
        self._prompt_tokens += prompt
        self._cached += reply.cached_tokens
        self._said += one.tokens
        one.tokens = prompt + reply.tokens

    def show(self, watch: "_Watch") -> None:
        """A line with the counts since the start."""
        row(
            str(self._answers), watch.resident, watch.cache, str(self._prompt_tokens),
            str(self._cached), str(self._said), f"{self._cached / max(self._said, 1):.0%}",
        )  # fmt: skip


class _Watch:
    """Memory of the server's process and of its cache, in MiB."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process = psutil.Process(server.pid)
        self.resident = self.cache = self.most_resident = self.most_cache = 0.0
        self.look()
        self.resident_at_first = self.resident

    def look(self) -> None:
        """Read both now."""
        self.resident = self._process.memory_info().rss / MIB
        self._stats = json.loads(server_process.get(self._server, "/v1/cache/stats")[1])
        self.cache = self._stats["bytes"] / MIB
        self.most_resident = max(self.most_resident, self.resident)
        self.most_cache = max(self.most_cache, self.cache)

    async def go_on(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.look()

    def report(self, bound: int) -> None:
        """What it came to."""
        stats = self._stats
        note(
            f"Cache at most {self.most_cache:.0f} of {bound / MIB:.0f} MiB; resident "
            f"{self.resident_at_first:.0f} MiB with an empty cache and full slots, at most "
            f"{self.most_resident:.0f} ({self.most_resident - self.resident_at_first:.0f} more)."
        )
        note(
            f"{stats['hits']} of {stats['lookups']} requests found something, "
            f"{stats['hit_tokens']} of {stats['lookup_tokens']} tokens; "
            f"{stats['evicted_bytes'] / MIB:.0f} MiB were dropped for others."
        )
