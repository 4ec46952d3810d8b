"""Many idle clients beside an answer, how a stream is cut into writes, and its signs of life."""

import json
import resource
from contextlib import ExitStack

import pytest

from tests.serve.conftest import HELLO
from tests.serve.test_protocol import raw_post

IDLERS = 300
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
TOKENS = 40
CHOICES = 4


@pytest.fixture
def many_files():
    """Room for a socket per idle client: the soft limit of open files is 256 on macOS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * IDLERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip("fewer files may be open than this test opens")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask_health(connection) -> None:
    """One exchange on a connection that stays open behind it."""
    connection.sendall(HEALTH)
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        piece = connection.recv(4096)
        assert piece, "it was closed"
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def chunks_of(answer: bytes) -> list[bytes]:
    """The chunks of a chunked response, without the empty one that ends it."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    chunks = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        chunk, rest = rest[:length], rest[length:]
        assert rest.startswith(b"\r\n")
        rest = rest.removeprefix(b"\r\n")
        if not length:
            assert rest == b""
            return chunks
        chunks.append(chunk)


def events_of(chunk: bytes) -> list[dict]:
    """The events of a chunk, each of them whole, without the end mark."""
    assert chunk.endswith(b"\n\n")
    lines = [one.removeprefix(b"data: ") for one in chunk.split(b"\n\n")[:-1]]
    return [json.loads(one) for one in lines if one != b"[DONE]"]


def test_hundreds_of_idle_clients_keep_no_answer_from_coming_and_no_server_from_ending(
    start_server, many_files
):
    server = start_server("--no-warmup")
    with ExitStack() as opened:
        idle = [opened.enter_context(server.connect()) for _ in range(IDLERS)]
        for connection in idle:
            ask_health(connection)
        whole = server.chat(max_tokens=8, ignore_eos=True)
        assert whole.json["usage"]["completion_tokens"] == 8
        assert server.chat(max_tokens=8, stream=True).events
        for connection in idle:
            ask_health(connection)
        assert server.stop() == 0
        assert {connection.recv(1) for connection in idle} == {b""}
    assert not any("Traceback" in note or "ERROR" in note for note in server.notes)


def test_a_stream_of_many_choices_is_at_most_one_write_a_tick(start_server):
    # One piece holds all four prompts, so that the choices begin, and go on, side by side.
    server = start_server(
        "--no-warmup", "--no-prompt-cache", "--prefill-chunk-size", "512",
        "--parallel", str(CHOICES), faults={"step_s": 0.02},
    )  # fmt: skip
    before = server.metric("mlxcel_batch_ticks_total")
    # With log-probabilities every token is an event, whatever its text.
    asked = {
        "messages": HELLO, "stream": True, "n": CHOICES, "max_tokens": TOKENS,
        "ignore_eos": True, "logprobs": True, "seed": 1,
    }  # fmt: skip
    with server.connect() as connection:
        connection.sendall(raw_post(json.dumps(asked).encode()))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    told = [events_of(one) for one in chunks_of(answer)]
    assert sum(map(len, told)) >= CHOICES * TOKENS
    server.wait_until_free()  # what it counts is no older than the answer's end then
    assert len(told) <= server.metric("mlxcel_batch_ticks_total") - before
    for events in told:
        assert {one["choices"][0]["index"] for one in events} == set(range(CHOICES))


def test_a_stream_whose_prompt_is_being_read_carries_comments_before_its_first_event(start_server):
    # It has a slot at once. A piece of it is read beside each step of its neighbour: 25 of them.
    server = start_server(
        "--no-warmup", "--no-prompt-cache", "--prefill-chunk-size", "16",
        "--sse-ping-interval", "0.1", faults={"step_s": 0.05},
    )  # fmt: skip
    with server.send_chat(stream=True, max_tokens=400, ignore_eos=True):
        server.wait_for(lambda: server.metric("mlxcel_batch_current_size") == 1)
        reply = server.complete("x" * 400, stream=True, max_tokens=4, ignore_eos=True)
    assert reply.status == 200
    before, _, _ = reply.body.partition(b"data:")
    assert before.count(b": ping\n\n") >= 2
    assert before.replace(b": ping\n\n", b"") == b""
    assert reply.events
    server.wait_until_free()
    assert server.metric("mlxcel_batch_prefill_chunks_total") >= 25
