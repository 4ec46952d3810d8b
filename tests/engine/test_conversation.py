"""A conversation reads only what is new, and writes what a cold run writes."""

from contextlib import suppress

import pytest

from engine.conversation import Conversation
from engine.errors import ContextOverflow, EvalFailed
from engine.params import SamplingParams, SequenceParams
from engine.prefill import PrefillPacer
from engine.session import Answer, Session, TextDelta
from tests.engine.handover_rigs import KINDS, engine_of
from tests.engine.rigs import Watched, byte_tokenizer

GLUE = (5, 6, 7)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, seed=11)

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Chat:
    """Turns on one engine, each judged by the same prompt on a cold engine."""

    def __init__(self, kind: str, tokenizer) -> None:
        self.kind = kind
        self.tokenizer = tokenizer
        self.engine = self.fresh()
        self.session = Session(self.engine, pacer=PrefillPacer(8))
        self.conversation = Conversation(self.engine)

    def fresh(self):
        engine = engine_of(self.kind)
        engine.tokenizer = self.tokenizer
        return engine

    def ask(self, ids, *, written: int = 9, sampling=SAMPLED) -> tuple[Answer, tuple[int, ...]]:
        """The answer, and the ids of prompt and answer."""
        params = SequenceParams(tuple(ids), sampling=sampling, max_tokens=written)
        kept = Keeper(self.conversation)
        events = list(self.session.generate(params, conversation=kept))
        cold = list(Session(self.fresh(), pacer=PrefillPacer(8)).generate(params))
        assert events[-1].text == cold[-1].text
        return events[-1], kept.ids

    def stop_after(self, ids, tokens: int) -> tuple[int, ...]:
        """Break the answer off; the ids of prompt and answer so far."""
        params = SequenceParams(tuple(ids), sampling=SAMPLED, max_tokens=60)
        kept = Keeper(self.conversation)
        events = self.session.generate(params, conversation=kept)
        for event in events:
            if isinstance(event, TextDelta) and event.tokens >= tokens:
                break
        events.close()
        return kept.ids


class Keeper(Conversation):
    """The conversation, noting the row's ids before it is closed."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.open = conversation.open
        self.at_prompt_end = conversation.at_prompt_end

    def at_end(self, seq) -> None:
        self.ids = self._conversation._engine.ids(seq)
        self._conversation.at_end(seq)


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
    events = chat.session.generate(params, conversation=chat.conversation)
    next(events)
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
                conversation=chat.conversation,
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
    assert len(chat.conversation._kept) <= (1 if kind in {"dense", "window as a mask"} else 3)
    assert chat.conversation.nbytes > 0
    chat.conversation.forget()
    assert chat.conversation.nbytes == 0
