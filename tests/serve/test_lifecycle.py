"""A server's life: start, port, load, drain, signals, idle unload, full queue, faults."""

import http.client
import json
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from tests.serve.conftest import FAULTY, environ_of

SLOW = {"step_s": 0.05}
ENDLESS = {"stream": True, "max_tokens": 400, "ignore_eos": True}


KILLED = """
import sys, threading, urllib.request
url, body = sys.argv[1], sys.argv[2].encode()
def ask():
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    for _ in urllib.request.urlopen(request):
        pass
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
"""
"""A client with eight connections."""


def vanish(connection):
    """Close so that the other side is reset, as a killed client's kernel does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def listens(server) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


def read_all(connection) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def busy(server) -> float:
    return server.metric("mlxcel_batch_current_size")


# -- clients that go


def test_two_hundred_clients_that_vanish_leave_no_row(start_server):
    server = start_server("--max-queue-depth", "250", faults={"step_s": 0.01})
    for index in range(200):
        connection = server.send_chat(**ENDLESS | {"stream": index % 2 == 0})
        if index % 10 == 0:
            server.wait_for(lambda: busy(server) > 0)
        (vanish if index % 3 else socket.socket.close)(connection)
    server.wait_until_free()
    assert server.metric("mlxcel_queue_depth") == 0
    assert server.chat(max_tokens=2).status == 200
    assert server.metric("mlxcel_requests_failed_total") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_is_killed_frees_its_slots_and_its_places_in_the_queue(start_server, stream):
    server = start_server(faults=SLOW)
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **ENDLESS, "stream": stream})
    url = f"{server.url}/v1/chat/completions"
    client = subprocess.Popen([sys.executable, "-c", KILLED, url, body], stderr=subprocess.DEVNULL)
    try:
        server.wait_for(lambda: busy(server) == 4)
        server.wait_for(lambda: server.metric("mlxcel_queue_depth") == 4)
    finally:
        client.kill()
        client.wait()
    server.wait_for(lambda: server.metric("mlxcel_requests_cancelled_total") == 8)
    assert busy(server) == server.metric("mlxcel_queue_depth") == 0
    assert server.chat(max_tokens=2).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_slot_while_its_answer_runs(start_server, stream):
    server = start_server(faults=SLOW)
    connection = server.send_chat(**ENDLESS | {"stream": stream})
    server.wait_for(lambda: busy(server) == 1)
    connection.close()
    server.wait_for(lambda: busy(server) == 0, seconds=5)
    assert server.metric("mlxcel_requests_cancelled_total") == 1


def test_a_client_that_does_not_read_is_paused_then_dropped_and_others_continue(
    start_server,
):
    server = start_server("--slow-reader-timeout", "1", "--ctx-size", "512")
    asked = {**ENDLESS, "n": 3, "logprobs": True, "top_logprobs": 20}
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **asked}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        # Before its rows are there, a server that is free says nothing about them.
        server.wait_for(lambda: busy(server) == 3)
        assert server.chat(max_tokens=20).status == 200
        server.wait_until_free()
    assert server.metric("mlxcel_requests_cancelled_total") == 3
    assert server.chat(max_tokens=1).status == 200


# -- full and faulty


def test_a_full_queue_sends_clients_away_until_there_is_room(start_server):
    server = start_server("--parallel", "1", "--max-queue-depth", "1", faults=SLOW)
    first, second = server.send_chat(**ENDLESS), server.send_chat(**ENDLESS)
    server.wait_for(lambda: server.metric("mlxcel_queue_depth") == 1)
    reply = server.chat(max_tokens=1)
    assert (reply.status, reply.error["type"]) == (503, "server_busy")
    assert reply.headers["retry-after"] == "1"
    assert reply.error["message"].startswith("All slots are busy. Please try again later.")
    assert server.ask("GET", "/health").status == 200
    first.close()
    second.close()
    server.wait_until_free()
    assert server.chat(max_tokens=1).status == 200


@pytest.mark.parametrize("slots", ["1", "4"])
def test_a_row_that_fails_breaks_its_own_answer_only(start_server, slots):
    server = start_server("--parallel", slots, faults={"fail_row": "FAIL ME"})
    good = {"prompt": "Hello", "max_tokens": 30, "seed": 1}
    alone = server.complete(**good).json["choices"]
    answers = []
    neighbour = threading.Thread(target=lambda: answers.append(server.complete(**good)))
    neighbour.start()
    whole = server.complete("FAIL ME", max_tokens=30)
    stream = server.complete("FAIL ME", max_tokens=30, stream=True)
    neighbour.join()
    assert (whole.status, whole.error["code"]) == (500, "generation_error")
    assert stream.status == 200
    *_, last, end = stream.body.decode().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "generation_error"
    assert end == ""
    assert answers[0].json["choices"] == alone
    assert server.ask("GET", "/health").status == 200
    assert server.complete(**good).json["choices"] == alone


@pytest.mark.parametrize(
    ("faults", "phase"), [({"die": "LAST"}, "dead"), ({"sick": "LAST"}, "unhealthy")]
)
def test_a_broken_engine_is_reported_by_health_and_requests_fail_fast(start_server, faults, phase):
    server = start_server(faults=faults | {"step_s": 0.05})
    running = server.send_chat(**ENDLESS)
    server.wait_for(lambda: busy(server) == 1)
    assert server.complete("LAST", max_tokens=9).status in (500, 503)
    assert b'"error"' in read_all_events(running)
    reply = server.ask("GET", "/health")
    assert (reply.status, reply.error["code"]) == (503, 503)
    assert reply.error["message"] == f"The server is {phase}."
    assert server.chat().status == 503
    # A stream that waited for its first event would have begun with 200.
    assert server.chat(stream=True).status == 503
    assert server.stop() == 0


def read_all_events(connection) -> bytes:
    """A stream up to its last chunk."""
    read = b""
    while not read.endswith(b"0\r\n\r\n"):
        piece = connection.recv(65536)
        if not piece:
            break
        read += piece
    connection.close()
    return read


# -- the end


@pytest.mark.parametrize("is_busy", [False, True])
def test_without_time_to_end_the_status_says_whether_an_answer_was_cut_off(start_server, is_busy):
    server = start_server("--drain-timeout", "0", faults={"step_s": 0.1})
    connection = server.send_chat(**ENDLESS) if is_busy else server.connect()
    server.wait_for(lambda: busy(server) == is_busy)
    assert server.stop(signal.SIGTERM) == (143 if is_busy else 0)
    connection.close()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_running_answers_end_before_the_server_does(start_server, signum):
    server = start_server("--drain-timeout", "20", faults={"step_s": 0.02})
    connection = server.send_chat(**ENDLESS | {"max_tokens": 60})
    server.wait_for(lambda: busy(server) == 1)
    assert server.stop(signum) == 0
    assert b"data: [DONE]" in read_all(connection)


def test_answers_that_take_too_long_are_ended_with_an_error(start_server):
    server = start_server("--drain-timeout", "0.3", faults={"step_s": 0.1})
    connection = server.send_chat(**ENDLESS)
    server.wait_for(lambda: busy(server) == 1)
    # Its 400 steps take longer than `stop` waits.
    assert server.stop(signal.SIGTERM) == 143
    assert b'"code":"engine_closed"' in read_all(connection)


def test_a_second_signal_ends_at_once(start_server):
    server = start_server("--drain-timeout", "60", faults={"step_s": 0.2})
    connection = server.send_chat(**ENDLESS)
    server.wait_for(lambda: busy(server) == 1)
    server.process.send_signal(signal.SIGINT)
    server.wait_for(lambda: any("stopping" in note for note in server.notes))
    # The time to drain is longer than `stop` waits.
    assert server.stop(signal.SIGINT) == 130
    connection.close()


def test_an_idle_server_ends_at_once_and_writes_nothing_to_stdout(start_server):
    server = start_server("--drain-timeout", "60")
    idle = server.connect()
    assert server.stop() == 0
    assert server.process.stdout.read() == b""
    assert not any("Traceback" in note for note in server.notes)
    idle.close()


# -- the beginning


def test_a_port_in_use_is_named(tiny_model, serve_home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = subprocess.run(
            [sys.executable, str(FAULTY), "serve", "-m", str(tiny_model), "--port", port],
            env=environ_of(serve_home),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert f"{port} on 127.0.0.1 is in use" in done.stderr


def test_what_cannot_be_is_refused_before_a_model_is_looked_for(serve_home):
    done = subprocess.run(
        [sys.executable, str(FAULTY), "serve", "-m", "no/model", "--context-shift"],
        env=environ_of(serve_home),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--context-shift" in done.stderr


def test_a_missing_model_ends_the_start(serve_home):
    done = subprocess.run(
        [sys.executable, str(FAULTY), "serve", "-m", "no/model", "--port", "0", "--offline"],
        env=environ_of(serve_home),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "no/model" in done.stderr


def test_the_start_reports_model_slots_settings_and_url(start_server):
    server = start_server("--parallel", "2", "--alias", "pet", "--max-kv-size", "100")
    told = "\n".join(server.notes)
    assert "served as pet, tiny" in told
    assert "2 slots, 100 tokens of context each" in told
    assert "parallel: 2" in told
    assert f"ready: {server.url}" in told
    assert server.complete("x" * 100).status == 400
    assert server.complete("x", ignore_eos=True).json["usage"]["total_tokens"] <= 100


def test_a_unix_socket_serves_and_is_gone_at_the_end(start_server, tmp_path):
    path = tmp_path / "s.sock"
    server = start_server("--unix", str(path), wait="ready: unix:")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b'{"status":"ok"}' in b"".join(iter(lambda: connection.recv(4096), b""))
    assert server.stop() == 0
    assert not path.exists()


def test_while_the_model_loads_clients_are_told_to_wait(start_server):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start_server("--port", str(port), faults={"load_s": 60}, wait=None)
    server.port = port
    server.wait_for(lambda: listens(server))
    for path in ("/health", "/v1/models"):
        reply = server.ask("GET", path)
        assert (reply.status, reply.error["message"]) == (503, "Loading model")
        assert "retry-after" in reply.headers
    assert server.stop(signal.SIGTERM) == 143


def test_an_idle_model_is_freed_and_the_next_request_loads_it_again(start_server):
    server = start_server("--idle-unload", "0.005")
    asked = {"seed": 1, "max_tokens": 8}
    before = server.chat(**asked).json["choices"]
    server.wait_for(lambda: server.ask("GET", "/").json["status"] == "asleep")
    assert server.ask("GET", "/health").status == 200
    assert server.chat(**asked).json["choices"] == before
    server.wait_for(lambda: server.metric("mlxcel_requests_total") == 2)


def test_the_server_program_is_the_serve_command():
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    assert project["scripts"]["mlxcel-server"] == "mlxcel_cli.entry_point:serve_main"


def test_a_stream_that_waits_for_its_turn_carries_comments(start_server):
    server = start_server("--parallel", "1", "--sse-ping-interval", "0.2", faults=SLOW)
    running = server.send_chat(**ENDLESS)
    server.wait_for(lambda: busy(server) == 1)
    with server.send_chat(**ENDLESS) as waiting:
        read = b""
        while read.count(b": ping\n\n") < 3:
            read += waiting.recv(4096)
    assert b"HTTP/1.1 200" in read
    assert b"data:" not in read
    running.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_https_is_served_with_a_certificate(start_server, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    server = start_server("--ssl-cert-file", str(cert), "--ssl-key-file", str(key))
    context = ssl.create_default_context()
    context.check_hostname = False
    context.load_verify_locations(cert)
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b'{"status":"ok"}'
    connection.close()
    assert "ready: https://127.0.0.1:" in "\n".join(server.notes)
