"""Chats with a server: what is asked, what comes back, what fails, what is cancelled."""

import gc
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from engine.errors import InvalidParams
from engine.params import SamplingParams
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import AnswerDone, AnswerRequest, ModelReport, ModelRequest
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.remote import RemoteBackend, ServerFailed
from mlxcel_cli.config import Settings, load_settings
from mlxcel_cli.prompt_input import PromptInput


class Server(ThreadingHTTPServer):
    """Answers ``/v1`` by a script and keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.chunks: list[object] = []
        self.status = 200
        self.asked: list[tuple[str, dict, str | None]] = []
        self.gone = threading.Event()
        self.hold = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "one", "max_model_len": 512}, {"id": "two"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers.get("Authorization")))
        if self.server.status != 200:
            self._reply({"error": {"message": "too busy"}}, self.server.status)
            return
        self.send_response(200)
        self.end_headers()
        for chunk in self.server.chunks:
            if chunk == "hold":
                self.server.hold.wait(20)
                # The client has closed: what is written finds nobody.
                try:
                    for _ in range(100):
                        self.wfile.write(b": still here\n\n" * 1000)
                except OSError:
                    self.server.gone.set()
                    return
            elif chunk == "[DONE]":
                self.wfile.write(b"data: [DONE]\n\n")
            else:
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()

    def _reply(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


def delta(**values) -> dict:
    finish = values.pop("finish", None)
    return {"choices": [{"delta": values, "finish_reason": finish}]}


def settings() -> Settings:
    return load_settings({}, command="chat")


def load(backend: RemoteBackend, name: str | None = None) -> ModelReport:
    return backend.load(ModelRequest(name=name, settings=settings()), lambda _: None)


def loaded(url: str, key: str | None = None) -> RemoteBackend:
    backend = RemoteBackend(url, key)
    load(backend)
    return backend


def request(**values) -> AnswerRequest:
    asked = PromptInput(({"role": "user", "content": "hi"},))
    return AnswerRequest(**{"prompt": asked, "sampling": SamplingParams()} | values)


def test_the_first_model_is_taken_or_the_one_named(server):
    backend = RemoteBackend(server.url)
    report = load(backend)
    assert (report.name, report.context_tokens) == ("one", 512)
    assert load(backend, "two").name == "two"
    with pytest.raises(InvalidParams, match="has one, two"):
        load(backend, "three")


@pytest.mark.parametrize("url", ["{0}", "{0}/", "{host}", "http://{host}"])
def test_an_address_is_taken_as_people_write_it(server, url):
    host = f"127.0.0.1:{server.server_port}"
    assert load(RemoteBackend(url.format(server.url, host=host))).name == "one"


def test_an_answer_streams_and_ends_with_its_numbers(server):
    server.chunks = [
        delta(role="assistant"),
        delta(reasoning_content="hm"),
        delta(content="Hel"),
        delta(content="lo 🙂", finish="length"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3,
                                  "prompt_tokens_details": {"cached_tokens": 4}}},
        "[DONE]",
    ]  # fmt: skip
    *pieces, end = loaded(server.url, key="secret").answer(
        request(
            sampling=SamplingParams(temperature=0.5, top_k=4, seed=3), max_tokens=7, stops=("x",)
        )
    )
    assert [(one.text, one.is_reasoning) for one in pieces if isinstance(one, TextDelta)] == [
        ("hm", True), ("Hel", False), ("lo 🙂", False),
    ]  # fmt: skip
    assert isinstance(end, AnswerDone)
    assert (end.text, end.finish, end.seed, end.reasoned) == ("Hello 🙂", "length", 3, True)
    assert (end.usage.prompt_tokens, end.timings.prompt_n, end.timings.predicted_n) == (9, 5, 3)
    path, body, key = server.asked[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["temperature"], body["top_k"], body["seed"]) == (0.5, 4, 3)
    assert (body["max_tokens"], body["stop"], body["stream"]) == (7, ["x"], True)
    assert "min_p" not in body


def test_a_server_that_refuses_is_quoted(server):
    server.status = 503
    with pytest.raises(ServerFailed, match=r"too busy \(HTTP 503\)"):
        list(loaded(server.url).answer(request()))


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([delta(content="Hel"), {"error": {"message": "out of memory"}}], "out of memory"),
        ([delta(content="Hel")], "broke off"),
        ([delta(content="Hel"), []], "not the shape"),
        ([delta(content="Hel"), {"choices": ["x"]}], "not the shape"),
        ([delta(content="Hel"), {"choices": 5}], "not the shape"),
        ([delta(content="Hel"), delta(content={"a": 1})], "not the shape"),
        ([delta(content="Hel"), {"usage": {"prompt_tokens": "x"}}, "[DONE]"], "not the shape"),
        ([delta(content="Hel"), {"usage": [1]}, "[DONE]"], "not the shape"),
    ],
)
def test_a_server_that_fails_in_the_middle_is_reported_after_what_came(server, chunks, said):
    server.chunks = chunks
    answer = loaded(server.url).answer(request())
    assert next(answer) == TextDelta("Hel", tokens=1)
    with pytest.raises(ServerFailed, match=said):
        list(answer)


def test_half_an_emoji_of_a_server_is_a_replacement_character(server):
    server.chunks = [delta(content="\ud83d"), "[DONE]"]
    first, last = loaded(server.url).answer(request())
    assert (first.text, last.text) == ("\ufffd", "\ufffd")


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ServerFailed, match=r"127\.0\.0\.1:9 cannot be reached"):
        loaded("http://127.0.0.1:9/v1")


def test_an_answer_that_fails_leaves_no_socket_open(server):
    server.chunks = [{"error": "out of memory"}, "[DONE]"]
    before = open_clients()
    with pytest.raises(ServerFailed) as failed:
        list(loaded(server.url).answer(request()))
    # The error keeps every frame alive, as a log or a debugger may.
    assert failed.value.__traceback__ is not None
    assert open_clients() <= before


def open_clients() -> set[int]:
    """Descriptors of connected-out sockets; those that a server accepts have no protocol."""
    sockets = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
    return {one.fileno() for one in sockets if one.proto == socket.IPPROTO_TCP} - {-1}


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "host:99999", "http://[::1"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InvalidParams, match="--url"):
        RemoteBackend(url)


def test_stopping_closes_the_connection_although_the_server_is_silent(server):
    server.chunks = [delta(content="Hel"), "hold"]
    backend = RemoteBackend(server.url)
    answerer = Answerer(backend, interrupt=backend.interrupt)
    list(answerer.load(ModelRequest(name=None, settings=settings())))
    stream = answerer.answer(request())
    assert next(iter(stream)).text == "Hel"
    answerer.stop()
    server.hold.set()
    assert server.gone.wait(20)
    answerer.close()
