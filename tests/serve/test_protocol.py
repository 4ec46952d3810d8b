"""HTTP as clients and strangers speak it: errors, bodies, keys, CORS, pages, broken requests."""

import json
import re
import socket

import pytest

JSON = "application/json"


def exchange(server, data: bytes) -> bytes:
    with server.connect() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b'"text"', b'{"messages": [}', b'{"a": NaN}', b"\xff\xfe",
        b'{"messages": "\xc4\xe3\xba\xc3"}', b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
    ids=repr,
)  # fmt: skip
def test_a_body_that_is_no_json_object_in_utf_8_is_refused(server, raw):
    reply = server.ask("POST", "/v1/chat/completions", raw=raw)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert server.ask("GET", "/health").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/no/such/path", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/owner/other", 404, "model_not_found"),
    ],
)
def test_every_error_has_openai_s_body(server, method, path, status, code):
    reply = server.ask(method, path)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert (status == 405) == ("allow" in reply.headers)


@pytest.mark.parametrize("value", ["100-continue", "200-ok", ""])
def test_an_expectation_is_met_or_ignored(server, value):
    raw = b'{"prompt": "a", "max_tokens": 1}'
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Expect: {value}\r\n"
    head += f"Content-Type: {JSON}\r\nContent-Length: {len(raw)}\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head.encode() + raw)
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\n") == (value == "100-continue")
    assert b"HTTP/1.1 200 OK\r\n" in said


def test_a_body_of_another_type_is_refused(server):
    reply = server.ask("POST", "/v1/completions", raw=b"a=1", Content_Type="text/plain")
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", [JSON, f"{JSON}; charset=utf-8", "application/problem+json"])
def test_json_goes_by_several_types(server, kind):
    raw = b'{"prompt": "a", "max_tokens": 1}'
    assert server.ask("POST", "/v1/completions", raw=raw, Content_Type=kind).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=repr,
)
def test_broken_http_is_answered_or_dropped_and_the_server_lives(server, data):
    answer = exchange(server, data)
    assert answer == b"" or re.match(rb"HTTP/1.[01] [45]\d\d", answer)
    assert server.ask("GET", "/health").status == 200


def test_a_request_that_breaks_off_is_forgotten(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"
    with server.connect() as connection:
        connection.sendall(head)
    assert server.ask("GET", "/health").status == 200


def test_a_stream_works_for_an_old_client_that_cannot_read_chunks(server):
    body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
    with server.connect() as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.endswith(b"\n\ndata: [DONE]\n\n")


def test_a_request_s_id_is_kept_and_a_strange_one_is_replaced(server):
    assert server.ask("GET", "/health", X_Request_Id="a-1").headers["x-request-id"] == "a-1"
    strange = server.ask("GET", "/health", X_Request_Id="a b").headers["x-request-id"]
    assert strange.startswith("req-")


def test_the_log_has_each_request_without_its_query(server):
    server.ask("GET", "/v1/models?secret=1", X_Request_Id="log-me")
    server.wait_for(lambda: any("log-me" in note for note in server.notes))
    entry = json.loads(next(note for note in server.notes if "log-me" in note))
    assert (entry["method"], entry["path"], entry["status"]) == ("GET", "/v1/models", 200)


def test_models_are_listed_by_the_first_alias(server):
    (entry,) = server.ask("GET", "/v1/models").json["data"]
    assert entry["id"] == "pet"
    assert "tiny" in entry["aliases"]
    assert entry["meta"]["context_tokens"] == 512
    assert server.ask("GET", "/v1/models/tiny").json == entry


def test_the_information_page_lists_the_endpoints(server):
    page = server.ask("GET", "/").json
    assert page["status"] == "serving"
    assert "POST /v1/chat/completions" in page["endpoints"]


def test_metrics_begin_with_llama_cpp_s_names_and_count(server):
    before = server.metric("mlxcel_requests_total")
    server.chat(max_tokens=2)
    text = server.ask("GET", "/metrics").body.decode()
    assert text.startswith("# HELP llamacpp:")
    server.wait_for(lambda: server.metric("mlxcel_requests_total") == before + 1)
    assert server.metric("mlxcel_slots_total") == 4


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:80", "http://a.localhost"]
)
def test_pages_of_this_machine_may_ask_by_default(server, origin):
    reply = server.ask("GET", "/health", Origin=origin)
    assert reply.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in server.ask("GET", "/health").headers


@pytest.mark.parametrize(
    "origin", ["https://app.example", "null", "http://localhost.evil.example", "http://", "x"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/cache/stats"])
def test_other_pages_are_refused_before_any_work(server, origin, path):
    reply = server.ask("GET", path, Origin=origin)
    assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "192.168.1.9", "[::"])
def test_a_name_that_is_not_the_server_s_is_refused(server, host):
    reply = server.ask("GET", "/v1/models", Host=host)
    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8080"])
def test_names_of_this_machine_are_the_server_s(server, host):
    assert server.ask("GET", "/health", Host=host).status == 200


def test_a_page_s_body_has_to_say_that_it_is_json(server):
    raw = b'{"prompt":"a","max_tokens":1}'
    asked = {"raw": raw, "Origin": "http://localhost:1", "Content_Type": "text/plain"}
    assert server.ask("POST", "/v1/completions", **asked).status == 415


def test_settings_can_be_read_and_not_changed_by_anyone(server):
    settings = server.ask("GET", "/v1/settings").json["settings"]
    assert settings["parallel"]["value"] == 4
    assert settings["parallel"]["change"] == "read-only"
    assert settings["parallel"]["variable"] == "MLXCEL_PARALLEL"
    assert server.ask("POST", "/v1/settings", {"drain_timeout": 1}).status == 403


@pytest.fixture(scope="module")
def guarded(tiny_model, serve_home, tmp_path_factory):
    """A server with a key, one allowed origin, small bodies and no room to wait."""
    from tests.serve.conftest import Starter, environ_of

    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# ours\nother-key\n")
    starter = Starter(environ_of(serve_home), tiny_model)
    yield starter(
        "--api-key-file", str(keys), "--cors-origin", "https://good.example",
        "--max-body-bytes", "2000", "--no-warmup", key="s3cret-key", MLXCEL_API_KEY="s3cret-key",
    )  # fmt: skip
    starter.end()


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/v1/settings", "/nowhere"])
@pytest.mark.parametrize("given", ["", "Bearer wrong", "Basic s3cret-key"])
def test_a_key_guards_everything_and_a_wrong_one_reads_like_none(guarded, path, given):
    reply = guarded.ask("GET", path, Authorization=given)
    assert reply.status == 401
    assert reply.error["message"] == "Invalid API key."


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer s3cret-key"},
        {"Authorization": "bearer other-key"},
        {"Authorization": "", "X_Api_Key": "s3cret-key"},
    ],
)
def test_keys_come_from_variable_and_file(guarded, headers):
    assert guarded.ask("GET", "/v1/models", **headers).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_asks_for_no_key(guarded, path):
    reply = guarded.ask("GET", path, Authorization="")
    assert (reply.status, reply.json) == (200, {"status": "ok"})


def test_no_page_shows_a_key(guarded):
    for path in ("/", "/v1/settings", "/openapi.json", "/metrics"):
        assert b"s3cret" not in guarded.ask("GET", path).body
    assert guarded.ask("GET", "/v1/settings").json["settings"]["api_key"]["value"] == "set"
    assert not any("s3cret" in note for note in guarded.notes)


def test_what_one_key_sent_is_no_cached_prompt_of_another(guarded):
    def cached(authorization: str) -> int:
        reply = guarded.ask(
            "POST", "/v1/completions", {"prompt": "a secret " * 12, "max_tokens": 1},
            Authorization=authorization,
        )  # fmt: skip
        return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("Bearer s3cret-key") == 0
    assert cached("Bearer other-key") == 0
    assert cached("Bearer s3cret-key") > 0


def preflight(server, origin):
    return server.ask(
        "OPTIONS", "/v1/chat/completions", Authorization="", Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,x-stainless-arch",
    )  # fmt: skip


def test_a_preflight_needs_no_key_and_allows_unknown_headers(guarded):
    reply = preflight(guarded, "https://good.example")
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == "https://good.example"
    assert "x-stainless-arch" in reply.headers["access-control-allow-headers"]


def test_another_origin_gets_no_allowance(guarded):
    assert "access-control-allow-origin" not in preflight(guarded, "https://bad.example").headers
    reply = guarded.ask("GET", "/v1/models", Origin="https://bad.example")
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers


def test_a_long_body_is_refused(guarded):
    reply = guarded.complete("x" * 3000)
    assert (reply.status, reply.error["message"]) == (413, "Request body too large.")


def test_changeable_settings_change_at_once_and_others_do_not(guarded):
    changed = guarded.ask("POST", "/v1/settings", {"access_log": "off"}).json["settings"]
    assert changed["access_log"]["value"] == "off"
    for body in ({"parallel": 2}, {"nothing": 1}, {"access_log": "loud"}, {"drain_timeout": "x"}):
        assert guarded.ask("POST", "/v1/settings", body).status == 400
    assert guarded.ask("POST", "/v1/settings", raw=b"[1]").status == 400


def raw_post(body: bytes, *lines: bytes) -> bytes:
    head = (
        b"POST /v1/chat/completions HTTP/1.1", b"Host: localhost", b"Connection: close",
        b"Content-Type: application/json", b"Content-Length: %d" % len(body), *lines,
    )  # fmt: skip
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def test_a_body_that_is_not_what_its_encoding_says_is_the_client_s_fault(server):
    with server.connect() as connection:
        connection.sendall(raw_post(b"{}", b"Content-Encoding: gzip"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_body"' in answer


def test_a_client_that_announces_too_long_a_body_is_refused_before_it_sends_it(server):
    head = raw_post(b"").replace(b"Content-Length: 0", b"Content-Length: 99999999")
    with server.connect() as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("field", ["chat_template_kwargs", "metadata"])
def test_what_is_nested_too_deeply_for_a_template_is_the_client_s_fault(server, field):
    deep = b"[" * 900 + b"]" * 900
    head = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"%b":{"a":%b}}'
    reply = server.ask("POST", "/v1/chat/completions", raw=head % (field.encode(), deep))
    assert reply.status in ({400} if field == "chat_template_kwargs" else {200, 400})


def test_requests_that_are_no_http_are_logged_and_are_no_fault_of_ours(start_server):
    server = start_server("--no-warmup")
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: \0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.0 400 ")
    server.wait_for(lambda: any(" 400 " in note for note in server.notes))
    assert [note for note in server.notes if "Traceback" in note or "AssertionError" in note] == []


def test_a_path_cannot_forge_a_line_of_the_log(start_server):
    server = start_server("--no-warmup")
    server.ask("GET", "/v1/models/a%0d%0aforged%1b%5b31m", X_Request_Id="forged-log")
    server.wait_for(lambda: any("forged-log" in note for note in server.notes))
    (line,) = (note for note in server.notes if "forged" in note)
    assert r"a\r\nforged\x1b[31m 404" in line


def test_an_error_quotes_no_more_than_a_glance_of_what_the_client_wrote(server):
    for reply in (
        server.chat(model="x" * 100_000),
        server.chat(**{"y" * 100_000: 1}),
        server.chat(logit_bias={"z" * 100_000: 1}),
    ):
        assert 400 <= reply.status < 500
        assert len(reply.error["message"]) < 1100
