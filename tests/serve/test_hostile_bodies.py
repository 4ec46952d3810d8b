"""Bodies that are meant to hurt: each gets a clear answer, and the server goes on."""

import gzip
import json
import re
import zlib

import pytest

from tests.serve.test_connections import error_of
from tests.serve.test_protocol import exchange, raw_post

CHAT = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1%b}'


def post(server, raw, path="/v1/chat/completions", **headers):
    return server.ask("POST", path, raw=raw, **headers)


@pytest.fixture(autouse=True)
def goes_on(server):
    yield
    assert server.chat(max_tokens=1).status == 200


@pytest.mark.parametrize(
    "more",
    [
        b',"temperature":NaN', b',"temperature":Infinity', b',"temperature":-Infinity',
        b',"temperature":1e999', b',"temperature":-1e999', b',"seed":1e400', b',"seed":1.5',
        b',"top_p":"1"', b',"user":"\xed\xa0\x80"', b',"user":"\xff"',
        b',"seed":123456789012345678901234567890', b',"n":1e9',
        b',"\\u0000":1', b',"":1',
    ],
)  # fmt: skip
def test_numbers_and_characters_that_are_none_are_refused(server, more):
    reply = post(server, CHAT % more)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 200_000}),
        ("/v1/chat/completions", {"messages": [], "stop": ["a"] * 1_000_000}),
        ("/v1/completions", {"prompt": [[65]] * 1_000_000}),
        ("/v1/completions", {"prompt": ["a"] * 1_000_000}),
        ("/v1/completions", {"prompt": [None] * 1_000_000}),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [-1] * 1_000_000}),
        ("/v1/completions", {"prompt": "a", "logit_bias": [[1]] * 1_000_000}),
        (
            "/v1/completions",
            {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(10**5)), 1)},
        ),
        ("/completion", {"prompt": ["a", 1] * 500_000}),
        ("/detokenize", {"tokens": [10**9] * 1_000_000}),
        ("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": [1] * 1_000_000}),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value)[:40],
)
def test_a_million_elements_are_refused_by_what_is_wrong_with_them(server, path, body):
    reply = server.ask("POST", path, body)
    assert reply.status == 400
    assert len(reply.error["message"]) < 1100


@pytest.mark.parametrize("opened", [b"[", b'{"a":', b'[{"a":'])
def test_any_depth_is_refused(server, opened):
    for raw in (opened * 200_000, CHAT % (b',"metadata":' + opened * 200_000)):
        assert post(server, raw).status == 400


def test_of_two_equal_keys_the_last_counts(server):
    reply = post(server, CHAT % b',"max_tokens":3,"ignore_eos":true')
    assert reply.json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "kind", ["text/html", "application/x-www-form-urlencoded", "multipart/form-data", "json", ";"]
)
def test_other_types_are_refused(server, kind):
    reply = post(server, CHAT % b"", Content_Type=kind)
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("name", ["br", "zstd", "compress", "gzip, gzip", "nonsense"])
def test_other_encodings_are_refused(server, name):
    reply = post(server, CHAT % b"", Content_Encoding=name)
    # aiohttp itself refuses those that it would know if their libraries were there.
    assert reply.status in (400, 415)
    assert reply.error["code"] in ("unsupported_encoding", "bad_http")


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_bodies_are_read_and_bombs_are_not(server, name, pack):
    assert post(server, pack(CHAT % b""), Content_Encoding=name).status == 200
    bomb = pack(b'{"prompt":"' + b"a" * 200_000_000)
    assert len(bomb) < 300_000
    reply = post(server, bomb, "/v1/completions", Content_Encoding=name)
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")


def test_chunks_above_the_limit_are_refused(start_server):
    server = start_server("--no-warmup", "--max-body-bytes", "1000")
    chunk = b"1f4\r\n" + b"a" * 500 + b"\r\n"
    head = raw_post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    for tail in (b"0\r\n\r\n", b""):
        status, error = error_of(exchange(server, head + 4 * chunk + tail))
        assert (status, error["code"]) == (413, "body_too_large")


def test_pipelined_requests_are_each_answered_in_order(server):
    one = raw_post(CHAT % b"").replace(b"Connection: close\r\n", b"")
    wrong = raw_post(b"{").replace(b"Connection: close\r\n", b"")
    answer = exchange(server, (one + wrong) * 5)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
    assert [status for status in statuses if status != b"100"] == [b"200", b"400"] * 5


@pytest.mark.parametrize("field", ["stop", "dry_sequence_breakers"])
def test_as_many_texts_as_documented_are_taken_and_no_more(server, field):
    asked = {"max_tokens": 1, "dry_multiplier": 1}
    assert server.chat(**asked, **{field: ["qz"] * 64}).status == 200
    assert server.chat(**asked, **{field: ["q" * 256] * 64}).status == 200
    for texts in (["qz"] * 65, ["q" * 16_385], [*["q" * 256] * 63, "q" * 257]):
        reply = server.chat(**asked, **{field: texts})
        assert (reply.status, reply.error["param"]) == (400, field)


def test_the_other_documented_bounds(server):
    assert "at most 64" in server.complete(["a"] * 65, max_tokens=0).error["message"]
    assert server.chat(n=8, max_tokens=1).status == 200
    assert server.chat(n=9).status == 400
    assert server.chat(seed=2**53 - 1, max_tokens=1).status == 200
    assert server.chat(seed=2**53).status == 400
    assert json.loads(server.chat(n=9).body)["error"]["param"] == "n"
