"""Random conversations write with a warm cache what they write with none."""

import random

import pytest

from engine.events import Cancelled
from engine.prompt_cache.cache import WHOLE_KINDS
from tests.engine.prompt_cache.cache_rigs import (
    cache_of,
    limits,
    params,
    served,
    without_cache,
)
from tests.engine.scheduler.scheduler_rigs import Told
from tests.engine.transfer_rigs import KINDS

NEAR_TIE = 1e-3
"""A gap of log-probabilities that differently cut forwards may turn over."""

ROUNDS = 14

SYSTEM = tuple((11 * i + 5) % 250 for i in range(24))


class Writer:
    """Thinks up prompts that have much in common with those before."""

    def __init__(self, seed: int, longest: int) -> None:
        self.random = random.Random(seed)
        self._longest = min(200, longest)
        self.texts: list[tuple[int, ...]] = [SYSTEM]

    def prompt(self) -> tuple[int, ...]:
        return self._thought_up()[: self._longest]

    def _thought_up(self) -> tuple[int, ...]:
        text = self.random.choice(self.texts)
        match self.random.randrange(5):
            case 0:  # the same again
                return text
            case 1:  # an edit
                return text[: self.random.randrange(1, len(text))] + self.new()
            case 2:  # another question behind the same beginning
                return SYSTEM + self.new()
            case _:  # the next turn
                return text + self.new()

    def new(self) -> tuple[int, ...]:
        return tuple(self.random.randrange(250) for _ in range(self.random.randrange(1, 30)))

    def remember(self, ids: tuple[int, ...]) -> None:
        self.texts = [*self.texts[-6:], ids]


def assert_same(warm: Told, cold: Told) -> None:
    """Identical, or first different where the cold run's two best were as good as equal."""
    for at, (ours, theirs) in enumerate(zip(warm.tokens, cold.tokens, strict=True)):
        if ours != theirs:
            best, second = cold.logprobs[at].top
            assert best.logprob - second.logprob < NEAR_TIE, (at, ours, theirs)
            return


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", ["plenty", "next to none", "one text"])
def test_warm_equals_cold_through_edits_aborts_and_evictions(kind, room, tokenizer):
    bounds = {
        "plenty": limits(),
        "next to none": limits(max_bytes=250_000 if kind in WHOLE_KINDS else 60_000),
        "one text": limits(max_entries=1),
    }
    server = served(kind, tokenizer, bounds[room], parallel=3)
    cold = without_cache(server)
    cache, asked = cache_of(server), 0
    writer = Writer(len(room), server.engine.context_tokens - 6)
    for _ in range(ROUNDS):
        prompts = [writer.prompt() for _ in range(writer.random.randrange(1, 4))]
        told = {}
        for ids in prompts:
            asked += 1
            told[str(asked)] = (ids, server.submit(str(asked), params(ids, written=5, logprobs=2)))
        doomed = writer.random.choice([None, *told])
        for tick in range(400):
            if server.scheduler.idle:
                break
            if tick == 4 and doomed is not None:
                server.scheduler.cancel(doomed)
            server.tick()
            stats = cache.stats()
            assert stats.nbytes <= (stats.limits.max_bytes or stats.nbytes)
            assert stats.entries <= stats.limits.max_entries
        for id_, (ids, warm) in told.items():
            writer.remember(ids + tuple(warm.tokens))
            if isinstance(warm.last, Cancelled):
                continue
            again = cold.submit(id_, params(ids, written=5, logprobs=2))
            cold.run()
            assert warm.done.finish == again.done.finish
            assert_same(warm, again)
    counters = cache.stats().counters
    assert counters.faults == 0
    assert counters.hits > 0
    if room == "next to none":
        assert counters.evicted_bytes > 0


def test_the_reference_sees_another_answer(tokenizer):
    server = served("dense", tokenizer)
    told = [server.submit(str(i), params((*SYSTEM, i), logprobs=2)) for i in (1, 2)]
    server.run()
    assert told[0].tokens != told[1].tokens
    with pytest.raises(AssertionError):
        assert_same(*told)
