"""Connections: half-closed clients, clients that are gone, heads and bodies that do not come."""

import asyncio
import json
import re
import socket

import pytest
from aiohttp import web

from mlxcel_cli.serve import bodies, connections
from mlxcel_cli.serve.bodies import read_body
from mlxcel_cli.serve.middleware import report_errors
from mlxcel_cli.serve.server import SERVER
from tests.serve.test_protocol import exchange, raw_post

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}
CHAT = json.dumps(HELLO | {"max_tokens": 30}).encode()
FAST = json.dumps(HELLO | {"max_tokens": 1}).encode()
CONTINUE = re.compile(rb"^(?:HTTP/1\.1 100 Continue\r\n\r\n)*")


def error_of(answer):
    """Status and error body of the one response on a connection."""
    head, _, body = CONTINUE.sub(b"", answer).partition(b"\r\n\r\n")
    assert b"application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_client_that_closes_its_half_after_asking_gets_its_answer(start_server):
    server = start_server("--no-warmup", faults={"step_s": 0.02})
    answer = exchange(server, raw_post(CHAT).replace(b"Connection: close\r\n", b""))
    told = CONTINUE.sub(b"", answer)
    assert told.startswith(b"HTTP/1.1 200 OK\r\n")
    body = json.loads(told.partition(b"\r\n\r\n")[2])
    assert body["usage"]["completion_tokens"] == 30
    assert server.metric("mlxcel_requests_cancelled_total") == 0


def test_a_half_closed_client_gets_its_whole_stream_and_then_the_end(server):
    asked = json.dumps(json.loads(CHAT) | {"stream": True}).encode()
    answer = exchange(server, raw_post(asked))
    assert answer.count(b"data: [DONE]") == 1


def test_a_half_closed_client_gets_the_answers_of_all_it_sent(server):
    request = raw_post(FAST).replace(b"Connection: close\r\n", b"")
    answer = exchange(server, request * 3 + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 4


def test_an_old_client_that_closes_its_half_gets_a_short_answer(server):
    assert b'{"status":"ok"}' in exchange(server, b"GET /health HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_client_that_closes_without_a_request_is_closed(server, is_first):
    with server.connect() as connection:
        if not is_first:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(4096) == b""


def test_clients_that_ask_and_go_at_once_are_noticed_without_a_stream(start_server):
    server = start_server("--no-warmup", "--max-queue-depth", "64", faults={"step_s": 0.02})
    for _ in range(30):
        server.send_chat(max_tokens=400, ignore_eos=True).close()
    server.wait_for(lambda: server.metric("mlxcel_requests_cancelled_total") > 0)
    # Their answers would take longer than this waits.
    server.wait_until_free()
    assert server.metric("mlxcel_queue_depth") == 0


def test_a_body_that_breaks_off_is_reported_as_such(server):
    whole = raw_post(CHAT)
    status, error = error_of(exchange(server, whole[:-10]))
    assert (status, error["code"]) == (400, "invalid_body")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: \0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 500 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_no_http_gets_an_error_in_openai_s_shape(server, data):
    status, error = error_of(exchange(server, data))
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "bad_http")
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) < 1100
    assert server.ask("GET", "/health").status == 200


def test_broken_chunks_are_reported_in_openai_s_form(server):
    head = raw_post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    status, error = error_of(exchange(server, head + b"zz\r\n"))
    assert status == 400
    assert error["code"] in ("invalid_body", "bad_http")


async def echo(request: web.Request) -> web.StreamResponse:
    return web.Response(body=await read_body(request))


async def spoken(
    data: bytes, *, wait_s: float = 5.0, handler=echo, ends: bool = False, server=None
) -> bytes:
    """What a server of ours says to these bytes, whose client then stays and says no more."""
    app = web.Application(middlewares=[report_errors])
    app[SERVER] = server
    app.router.add_route("*", "/", handler)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    site = await connections.accept(runner, listener, None, web.AccessLogger)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        if ends:
            writer.write_eof()
        try:
            async with asyncio.timeout(wait_s):
                return await reader.read()
        except TimeoutError:
            return b"it is still open"
        finally:
            writer.close()
            await writer.wait_closed()
    finally:
        site.close()
        await runner.cleanup()


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("data", [b"P", HEAD, HEAD + b"Content-Length: 2\r\n"], ids=repr)
def test_a_head_that_does_not_come_to_its_end_times_out(monkeypatch, data):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    status, error = error_of(asyncio.run(spoken(data)))
    assert (status, error["code"]) == (408, "request_timeout")


def test_a_body_that_does_not_come_times_out(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_IDLE_S", 0.2)
    data = HEAD + b"Content-Length: 20\r\nConnection: close\r\n\r\n{}"
    status, error = error_of(asyncio.run(spoken(data)))
    assert (status, error["code"]) == (408, "request_timeout")


def test_a_connection_between_requests_has_no_deadline(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    for data in (
        b"",
        HEAD + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: 0\r\n\r\n\r\n",
    ):
        assert asyncio.run(spoken(data, wait_s=0.5)) == b"it is still open"


def test_what_clients_do_wrong_leaves_no_traceback_in_the_log(start_server):
    server = start_server("--no-warmup", "--slow-reader-timeout", "0.5", faults={"step_s": 0.001})
    kept = raw_post(b"{}", b"Content-Encoding: gzip").replace(b"Connection: close\r\n", b"")
    assert error_of(exchange(server, kept))[0] == 400
    assert b" 400 " in exchange(server, b"nonsense\r\n\r\n")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect(("127.0.0.1", server.port))
    asked = HELLO | {"stream": True, "n": 8, "max_tokens": 400, "logprobs": True}
    slow.sendall(raw_post(json.dumps(asked | {"top_logprobs": 20}).encode()))
    server.wait_for(lambda: server.metric("mlxcel_requests_cancelled_total") > 0)
    server.wait_until_free()
    slow.close()
    assert not any("Traceback" in note or "ERROR" in note for note in server.notes)
