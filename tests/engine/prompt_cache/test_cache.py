"""What the scheduler's rows take from the prompt cache and leave in it."""

import pytest

from engine.prompt_cache.key import CacheUse
from tests.engine.handover_rigs import KINDS
from tests.engine.prompt_cache.cache_rigs import (
    SYSTEM,
    ask,
    cache_of,
    cold_tokens,
    params,
    prompt,
    served,
)
from tests.engine.rigs import byte_tokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)
CUT = ("dense", "window as a mask")
WHOLE = ("ring", "recurrent")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@each_kind
def test_the_same_prompt_again_forwards_only_its_last_token(kind, tokenizer):
    # mlx-lm#1215: nothing is left to forward after an exact hit.
    server = served(kind, tokenizer)
    first, again = (ask(server, id_, prompt(50)) for id_ in "ab")
    assert first.done.usage.cached_tokens == 0
    assert again.done.usage.cached_tokens == again.done.timings.cache_n == 49
    assert again.done.timings.prompt_n == 1
    assert again.tokens == first.tokens == cold_tokens(server, prompt(50))


@each_kind
def test_the_same_prompt_of_concurrent_requests_is_written_alike(kind, tokenizer):
    server = served(kind, tokenizer)
    expected = ask(server, "first", prompt(50)).tokens
    told = [server.submit(id_, params(prompt(50))) for id_ in "abcd"]
    server.run()
    assert [one.tokens for one in told] == [expected] * 4
    assert [one.done.usage.cached_tokens for one in told] == [49] * 4


@each_kind
def test_a_prompt_that_is_all_remembered_still_forwards_a_token(kind, tokenizer):
    server = served(kind, tokenizer)
    first = ask(server, "a", prompt(50))
    whole = prompt(50) + tuple(first.tokens)
    stored = whole[:-1]
    again = ask(server, "b", stored)
    assert again.done.timings.prompt_n >= 1
    assert again.done.usage.cached_tokens >= 49
    assert again.tokens == cold_tokens(server, stored)


@each_kind
def test_the_next_turn_reads_only_what_is_new(kind, tokenizer):
    server = served(kind, tokenizer)
    ids, new = prompt(50), (5, 6, 7, 8)
    first = ask(server, "a", ids)
    ids += tuple(first.tokens) + new
    second = ask(server, "b", ids)
    assert second.done.timings.prompt_n == 1 + len(new)
    assert second.tokens == cold_tokens(server, ids)


@pytest.mark.parametrize("kind", CUT)
def test_a_shared_beginning_is_taken_over_and_held_once(kind, tokenizer):
    server = served(kind, tokenizer)
    ask(server, "a", SYSTEM + prompt(20, 1))
    held = cache_of(server).stats()
    told = ask(server, "hi", (*SYSTEM, 104, 105))
    assert told.done.usage.cached_tokens == len(SYSTEM)
    assert told.tokens == cold_tokens(server, (*SYSTEM, 104, 105))
    assert cache_of(server).stats().tokens == held.tokens + 2 + 5


@pytest.mark.parametrize("kind", WHOLE)
def test_the_next_turn_goes_on_from_the_history_where_its_template_rewrote_the_answer(
    kind, tokenizer
):
    server = served(kind, tokenizer)
    history, marks = prompt(50), (1, 2, 3)
    ask(server, "a", history + marks, cache=CacheUse(history_tokens=50))
    told = ask(server, "b", (*history, 9, 9, 9, 9, *marks), cache=CacheUse(history_tokens=54))
    assert told.done.usage.cached_tokens == 50
    assert told.tokens == cold_tokens(server, (*history, 9, 9, 9, 9, *marks))


@each_kind
def test_who_opts_out_finds_nothing_and_leaves_nothing(kind, tokenizer):
    server = served(kind, tokenizer)
    ask(server, "a", prompt(50), cache=None)
    assert cache_of(server).stats().nbytes == 0
    ask(server, "b", prompt(50))
    assert ask(server, "c", prompt(50), cache=None).done.usage.cached_tokens == 0


@each_kind
@pytest.mark.parametrize("field", ["session", "adapter", "template"])
def test_scopes_share_nothing(kind, field, tokenizer):
    server = served(kind, tokenizer)
    mine, theirs = CacheUse(**{field: "mine"}), CacheUse(**{field: "theirs"})
    ask(server, "a", prompt(50), cache=mine)
    assert ask(server, "b", prompt(50), cache=theirs).done.usage.cached_tokens == 0
    assert ask(server, "c", prompt(50)).done.usage.cached_tokens == 0
    assert ask(server, "d", prompt(50), cache=mine).done.usage.cached_tokens == 49
