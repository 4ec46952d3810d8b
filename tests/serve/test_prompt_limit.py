"""Prompts that can never fit are refused before they are encoded."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ContextOverflow
from mlxcel_cli.serve.served_model import PromptLimit

MEGABYTES = "word " * 2_000_000


class Pieces:
    """A vocabulary of given pieces."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.vocab_size = len(pieces)
        self.reads = 0

    def piece_bytes(self, token):
        self.reads += 1
        return self.pieces[token]


def test_the_longest_token_of_the_vocabulary_bounds_how_few_a_text_becomes():
    limit = PromptLimit(Pieces(b"a", b"abcde"), 10)
    limit.check(("x" * 219,))
    with pytest.raises(ContextOverflow, match="at least 11 tokens; the context holds 10"):
        limit.check(("x" * 220,))


def test_token_ids_are_counted_one_by_one_and_the_vocabulary_is_read_once():
    pieces = Pieces(b"abc")
    limit = PromptLimit(pieces, 10)
    limit.check(range(10))
    assert pieces.reads == 0
    for _ in range(2):
        with pytest.raises(ContextOverflow, match="at least 11"):
            limit.check(range(11))
    assert pieces.reads == 1


@given(st.lists(st.sampled_from(["é", "ab", "🙂", " "]), max_size=60), st.integers(1, 50))
def test_what_is_refused_surely_does_not_fit(pieces, context):
    limit = PromptLimit(Pieces(*(piece.encode() for piece in ("é", "ab", "🙂", " "))), context)
    try:
        limit.check(("".join(pieces),))
    except ContextOverflow:
        assert len(pieces) > context


def too_long(path):
    if path == "/v1/completions":
        return {"prompt": MEGABYTES}
    if path == "/completion":
        return {"prompt": ["x", 65, MEGABYTES]}
    body = {"messages": [{"role": "user", "content": MEGABYTES}]}
    return body | ({"model": "tiny", "max_tokens": 1} if path == "/v1/messages" else {})


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages"]
)
def test_ten_megabytes_are_refused_with_both_counts(server, path):
    reply = server.ask("POST", path, too_long(path))
    assert reply.status == 400
    assert "at least" in reply.error["message"]
    assert "the context holds 512" in reply.error["message"]
    if path.startswith("/v1/c"):
        assert reply.error["code"] == "context_length_exceeded"


def test_a_million_token_ids_are_refused_and_so_are_texts_between_them(server):
    reply = server.complete([65] * 1_000_000)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert server.ask("POST", "/completion", {"prompt": [65] * 1_000_000}).status == 400


def test_ten_megabytes_are_not_encoded_and_nobody_waits_for_them(server, monkeypatch):
    done = threading.Event()

    def flood():
        try:
            for _ in range(4):
                assert server.complete(MEGABYTES).status == 400
        finally:
            done.set()

    flooding = threading.Thread(target=flood)
    flooding.start()
    asked = 0
    while not done.is_set():
        assert server.complete("Hello", max_tokens=1).status == 200
        asked += 1
        time.sleep(0.01)
    flooding.join()
    assert asked > 3


def test_long_conversations_can_be_counted(server):
    body = {"messages": [{"role": "user", "content": "x" * 100_000}]}
    reply = server.ask("POST", "/v1/chat/completions/input_tokens", body)
    assert reply.json["input_tokens"] > 100_000
    assert (
        len(server.ask("POST", "/tokenize", {"content": "x" * 100_000}).json["tokens"]) == 100_000
    )
