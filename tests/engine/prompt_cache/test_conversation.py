"""A conversation reads only what is new, and writes what a cold run writes."""

from contextlib import suppress
from typing import Any

import pytest

from engine.errors import ContextOverflow, EvalFailed
from engine.events import Delta, PrefillProgress
from engine.params import SamplingParams, SequenceParams, SpeculationParams
from engine.prefill import PrefillPacer
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.limits import CONVERSATION
from engine.session import Session
from tests.engine.rigs import Watched, cycle_engine
from tests.engine.session_rigs import Said, said
from tests.engine.transfer_rigs import KINDS, engine_of

GLUE = (5, 6, 7)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=11)

each_kind = pytest.mark.parametrize("kind", KINDS)


class Chat:
    """Turns on one engine, each judged by the same prompt on a cold engine."""

    def __init__(self, kind: str, tokenizer) -> None:
        self.kind = kind
        self.tokenizer = tokenizer
        self.engine = self.fresh()
        self.session = Session(self.engine, pacer=PrefillPacer(8))
        self.cache = PromptCache(self.engine, CONVERSATION)

    def fresh(self):
        engine = engine_of(self.kind)
        engine.tokenizer = self.tokenizer
        return engine

    def ask(self, ids, *, written: int = 9, sampling=SAMPLED) -> tuple[Said, tuple[int, ...]]:
        """The answer, and the ids of prompt and answer."""
        params = SequenceParams(tuple(ids), sampling=sampling, max_tokens=written)
        kept = Keeper(self.cache)
        answer = said(self.session.generate(params, cache=kept))
        cold = said(Session(self.fresh(), pacer=PrefillPacer(8)).generate(params))
        assert answer.text == cold.text
        return answer, kept.ids

    def stop_after(self, ids, tokens: int) -> tuple[int, ...]:
        """Break the answer off; the ids of prompt and answer so far."""
        params = SequenceParams(tuple(ids), sampling=SAMPLED, max_tokens=60)
        kept = Keeper(self.cache)
        events = self.session.generate(params, cache=kept)
        for event in events:
            if isinstance(event, Delta) and event.completion_tokens >= tokens:
                break
        events.close()
        return kept.ids


class Keeper:
    """The cache, noting a row's ids before it is closed."""

    def __init__(self, cache: PromptCache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def close(self, seq, *, keeps: bool) -> None:
        self.ids = self._cache._engine.ids(seq)
        self._cache.close(seq, keeps=keeps)


def prompt(tokens: int, shift: int = 3) -> tuple[int, ...]:
    return tuple((7 * i + shift) % 250 for i in range(tokens))


@each_kind
def test_the_next_turn_reads_only_what_is_new(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    _, ids = chat.ask(prompt(20), written=6)
    for shift in (1, 2):
        new = GLUE + prompt(3, shift) + GLUE
        answer, ids = chat.ask(ids + new, written=6)
        # The last token written has no KV yet: it is read with what is new.
        assert answer.timings.prompt_n == len(new) + 1
        assert (
            answer.usage.cached_tokens
            == answer.timings.cache_n
            == answer.usage.prompt_tokens - (answer.timings.prompt_n)
        )


@each_kind
def test_the_turn_after_a_stop_reads_only_what_is_new(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    ids = chat.stop_after(prompt(30), 4)
    answer, _ = chat.ask(ids + GLUE)
    assert answer.timings.prompt_n <= len(GLUE) + 2


@each_kind
def test_a_regeneration_reads_one_token(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    chat.ask(prompt(30))
    answer, _ = chat.ask(prompt(30), sampling=SamplingParams(temperature=1.0, seed=5))
    assert answer.timings.prompt_n == 1


@each_kind
def test_an_edit_of_the_last_turn_reads_the_edit(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    _, first = chat.ask(prompt(30))
    chat.ask(first + GLUE + prompt(6, 1))
    answer, _ = chat.ask(first + GLUE + prompt(7, 2))
    assert answer.timings.prompt_n <= len(GLUE) + 7 + 1


def test_an_edit_far_back_keeps_what_stands_before_it(tokenizer):
    chat = Chat("dense", tokenizer)
    _, ids = chat.ask(prompt(30))
    chat.ask(ids + GLUE)
    answer, _ = chat.ask(prompt(20) + GLUE)
    assert answer.usage.cached_tokens == 20


@each_kind
def test_another_conversation_starts_from_nothing(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    chat.ask(prompt(30))
    answer, _ = chat.ask(prompt(30, shift=4))
    assert answer.usage.cached_tokens == 0


@each_kind
def test_a_prompt_broken_off_is_not_read_twice(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    params = SequenceParams(prompt(40), max_tokens=4)
    events = chat.session.generate(params, cache=chat.cache)
    for event in events:
        if isinstance(event, PrefillProgress):
            break
    events.close()
    answer, _ = chat.ask(prompt(40))
    assert answer.usage.cached_tokens == 8


def test_a_prompt_that_is_too_long_costs_nothing_that_is_kept(tokenizer):
    chat = Chat("dense", tokenizer)
    _, ids = chat.ask(prompt(30))
    with pytest.raises(ContextOverflow):
        chat.ask(prompt(600))
    answer, _ = chat.ask(ids + GLUE)
    assert answer.timings.prompt_n == len(GLUE) + 1


@each_kind
def test_a_failed_turn_leaves_nothing_that_spoils_the_next(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    _, ids = chat.ask(prompt(30))
    watched = Watched(chat.engine)
    watched.fails_in = lambda call: call == 3
    with suppress(EvalFailed):
        list(
            chat.session.generate(
                SequenceParams(ids + GLUE, sampling=SAMPLED, max_tokens=9),
                cache=chat.cache,
            )
        )
    assert watched.calls == 3
    watched.fails_in = lambda call: False
    chat.ask(ids + GLUE)


@each_kind
def test_memory_is_of_one_conversation_and_forgetting_frees_it(kind, tokenizer):
    chat = Chat(kind, tokenizer)
    _, ids = chat.ask(prompt(20), written=2)
    for _ in range(4):
        _, ids = chat.ask(ids + GLUE, written=2)
    stats = chat.cache.stats()
    assert stats.entries <= CONVERSATION.max_entries
    if kind in {"dense", "window as a mask"}:
        assert stats.entries == 1
        assert stats.tokens == len(ids) - 1
    assert chat.cache.nbytes > 0
    chat.cache.forget()
    assert chat.cache.nbytes == 0


@pytest.mark.parametrize("written", range(1, 15))
def test_of_a_draft_that_ends_the_answer_only_what_was_written_is_kept(written, tokenizer):
    engine = cycle_engine(tokenizer=tokenizer)
    cache = PromptCache(engine, CONVERSATION)
    ids = tuple(range(16)) * 3
    params = SequenceParams(ids, max_tokens=written, speculation=SpeculationParams())
    answer = said(Session(engine, pacer=PrefillPacer(16)).generate(params, cache=cache))
    assert answer.usage.completion_tokens == written
    if written > 8:
        assert answer.timings.draft_n_accepted > 0
    assert cache.stats().tokens == len(ids) + written - 1
    whole = ids + tuple(i % 16 for i in range(written)) + (0, 1)
    seq = cache.open(SequenceParams(whole))
    assert engine.cached_tokens(seq) == len(whole) - 3
