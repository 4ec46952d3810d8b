"""Half-closed clients that wait are kept alive; those that are gone are noticed."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from engine.errors import EvalFailed
from engine.events import Delta, Done, Failed
from engine.finish import FinishCause
from engine.outcome import Timings, Usage
from engine.params import SequenceParams
from engine.scheduler.request import ScheduledRequest
from mlxcel_cli.serve import keep_alive
from mlxcel_cli.serve.channel import Channel
from mlxcel_cli.serve.choices import choices_of
from mlxcel_cli.serve.delivery import respond
from mlxcel_cli.serve.generation import Generation
from mlxcel_cli.serve.openai.schema import OPENAI
from mlxcel_cli.serve.prompts import EncodedPrompt
from mlxcel_cli.serve.response import Formatter, ResponseStream
from mlxcel_cli.serve.server import REQUEST_ID
from tests.serve.test_connections import spoken
from tests.serve.test_protocol import exchange, raw_post

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True}
OLD = b"GET / HTTP/1.0\r\n\r\n"


def old_post(**fields):
    """A whole request of HTTP/1.0, as ``nc -N`` sends it."""
    request = raw_post(json.dumps(HELLO | fields).encode()).replace(b"HTTP/1.1", b"HTTP/1.0")
    return request.replace(b"Connection: close\r\n", b"")


def test_an_old_client_that_closes_its_half_gets_an_answer_that_takes_long(start_server):
    server = start_server("--no-warmup", faults={"step_s": 0.1})
    head, _, body = exchange(server, old_post(max_tokens=30)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"Content-Type: application/json" in head
    assert body.startswith(b" "), "it took less than it has to for this test"
    assert json.loads(body)["usage"]["completion_tokens"] == 30
    assert server.metric("mlxcel_requests_cancelled_total") == 0


def test_an_old_client_that_is_gone_is_noticed_before_its_answer_is_there(start_server):
    server = start_server("--no-warmup", faults={"step_s": 0.1})
    with server.connect() as connection:
        connection.sendall(old_post(max_tokens=400))
    server.wait_for(lambda: server.metric("mlxcel_requests_cancelled_total") == 1, 10)


def test_a_stream_whose_client_goes_while_it_waits_leaves_the_queue(start_server):
    server = start_server("--no-warmup", "--parallel", "1", faults={"step_s": 0.1})
    with server.send_chat(max_tokens=400, ignore_eos=True):
        server.wait_for(lambda: server.metric("mlxcel_batch_current_size") == 1)
        with server.send_chat(max_tokens=9, stream=True) as waiting:
            # It has its head by now, and the next keep-alive is due in half a minute.
            assert waiting.recv(4096).startswith(b"HTTP/1.1 200 OK")
            assert server.metric("mlxcel_queue_depth") == 1
        server.wait_for(lambda: server.metric("mlxcel_queue_depth") == 0, 5)


class Texts(Formatter):
    """Sends each delta's text, and raises at "raise"."""

    def __init__(self, choice):
        self.choice = choice

    def sse(self, event):
        return str(event).encode()

    def delta(self, choice, growth):
        if growth.text == "raise":
            raise KeyError(growth.text)
        yield growth.text

    def closing(self, choice, growth):
        return ()

    def end(self):
        yield b"end"

    def error(self, error):
        return error.code

    def whole(self):
        return {"text": self.choice.answer.text}


def answered(data, *events, stream=False, every_s=0.03):
    """What a client reads that sends ``data`` and closes its half, while these events come."""
    channel = Channel(("r",), pause=print, resume=print)

    def submit(_rows):
        loop = asyncio.get_running_loop()
        for place, event in enumerate(events, 1):
            loop.call_later(place * every_s, channel.put, event)
        return channel

    async def handler(request):
        request[REQUEST_ID] = "req-1"
        row = ScheduledRequest("r", SequenceParams((1,)))
        generation = Generation((row,), (EncodedPrompt((1,), "a"),), 7)
        (choice,) = choices_of(generation, None)
        response = ResponseStream((choice,), Texts(choice))
        return await respond(request, generation, response, OPENAI, stream=stream)

    settings = SimpleNamespace(sse_ping_interval=30.0, slow_reader_timeout=5.0)
    worker = SimpleNamespace(open=submit, close=lambda channel: None)
    server = SimpleNamespace(settings=settings, worker=worker)
    return asyncio.run(spoken(data, handler=handler, ends=True, server=server))


def delta(text):
    return Delta("r", text, (1,), (), 1)


END = Done("r", FinishCause.EOS, None, Usage(1, 1), Timings(1, 0.1, 1, 0.1, 0.1), 7)


@pytest.mark.parametrize("grace_s", [0.0, 0.04, 5.0])
def test_spaces_before_an_early_answer_are_no_part_of_it(monkeypatch, grace_s):
    monkeypatch.setattr(keep_alive, "OLD_CLIENT_S", grace_s)
    answer = answered(OLD, delta("a"), delta("b"), delta("."), END)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert json.loads(body) == {"text": "ab."}
    assert body.startswith(b" ") == (grace_s < 1)


@pytest.mark.parametrize(("grace_s", "status"), [(0.0, b"200"), (5.0, b"500")])
def test_a_failure_behind_an_early_head_is_in_the_body(monkeypatch, grace_s, status):
    monkeypatch.setattr(keep_alive, "OLD_CLIENT_S", grace_s)
    answer = answered(OLD, delta("a"), Failed("r", EvalFailed("lost")))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert json.loads(body)["error"]["code"] == "generation_error"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_half_closed_stream_carries_keep_alives_between_its_text(version):
    data = b"GET / HTTP/%s\r\nHost: localhost\r\n\r\n" % version
    answer = answered(data, delta("a"), delta("."), END, stream=True, every_s=0.3)
    assert answer.count(b": ping\n\n") >= 3
    assert b"a" in answer.partition(b"\r\n\r\n")[2]
    assert answer.partition(b".")[2].count(b"end") == 1


def test_a_fault_within_a_stream_ends_it_as_a_failed_answer_does(caplog):
    answer = answered(OLD, delta("a"), delta("raise"), END, stream=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert body.replace(b": ping\n\n", b"") == b"ainternal_error"
    assert "GET / failed" in caplog.text
