"""``/v1/messages`` judged by the public ``anthropic`` client, and byte by byte where it is lax."""

import json
from types import SimpleNamespace

import anthropic
import pytest
from anthropic import Anthropic

from engine.errors import InvalidParams
from engine.events import Delta, Done, Started
from engine.finish import FinishCause
from engine.outcome import Timings, Usage
from engine.params import SequenceParams
from engine.scheduler.request import ScheduledRequest
from engine.text.answer_text import ThinkingMarks
from mlxcel_cli.serve.anthropic.request import chat_of
from mlxcel_cli.serve.anthropic.response import MessagesFormatter
from mlxcel_cli.serve.anthropic.schema import ANTHROPIC_FIELDS, MessagesRequest
from mlxcel_cli.serve.bodies import parse_body
from mlxcel_cli.serve.choices import choices_of
from mlxcel_cli.serve.generation import Generation
from mlxcel_cli.serve.prompts import EncodedPrompt
from mlxcel_cli.serve.response import ResponseStream

HELLO = [{"role": "user", "content": "Dog"}]
GREEDY = {"top_k": 1}
"""The client has no parameter of its own for it."""
USAGE = {
    "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
}  # fmt: skip
MARKS = (ThinkingMarks("<think>", "</think>"),)


@pytest.fixture
def client(server):
    with Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def post(server, path="/v1/messages", **fields):
    asked = {"model": "pet", "messages": HELLO, "max_tokens": 4, "top_k": 1}
    body = {key: value for key, value in {**asked, **fields}.items() if value is not ...}
    return server.ask("POST", path, body)


def events(reply):
    """Names and contents of a stream's events."""
    *blocks, rest = reply.body.decode().split("\n\n")
    assert rest == ""
    told = []
    for block in blocks:
        name, data = block.split("\n")
        told.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in told)
    return told


# -- shapes


def test_a_message_has_anthropic_s_keys(server):
    body = post(server).json
    assert set(body) == {
        "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage",
    }  # fmt: skip
    assert body["id"].startswith("msg_")
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "pet")
    assert [set(block) for block in body["content"]] == [{"type", "text"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("max_tokens", None)
    assert set(body["usage"]) == USAGE
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (22, 4)


def test_a_stream_is_anthropic_s_events_in_their_order(server):
    told = events(post(server, stream=True))
    names = [name for name, _ in told]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = told[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert (start["usage"]["input_tokens"], start["usage"]["output_tokens"]) == (22, 0)
    assert told[2][1] == {
        "type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""},
    }  # fmt: skip
    end = told[-2][1]
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert set(end["usage"]) == USAGE
    text = "".join(data["delta"]["text"] for name, data in told if name == "content_block_delta")
    assert text == post(server).json["content"][0]["text"]


def test_a_prompt_s_cached_part_is_not_among_its_input_tokens(server):
    asked = {"messages": [{"role": "user", "content": "Once more and once more, " * 4}]}
    cold, warm = (post(server, **asked).json["usage"] for _ in range(2))
    total = cold["input_tokens"] + cold["cache_read_input_tokens"]
    assert warm["cache_read_input_tokens"] > 0
    assert warm["input_tokens"] + warm["cache_read_input_tokens"] == total
    first = events(post(server, stream=True, **asked))[0][1]["message"]["usage"]
    assert first["cache_read_input_tokens"] >= warm["cache_read_input_tokens"]


# -- the public client


def test_the_client_reads_whole_and_streamed_messages_alike(client):
    asked = {"model": "pet", "max_tokens": 12, "messages": HELLO, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12
    assert whole._request_id


def test_the_client_counts_tokens_as_an_answer_uses_them(client):
    asked = {
        "model": "pet",
        "messages": HELLO,
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    }
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("system", "left"),
    [
        ("x-anthropic-billing-header: cc_version=2.1; cch=4f1;\nBe kind.", "Be kind."),
        ("x-anthropic-billing-header: cc_version=2.1;\n\nBe kind.", "Be kind."),
        ("Be kind.\nx-anthropic-billing-header: as text", None),
    ],
)
def test_the_line_that_changes_with_each_request_is_no_part_of_the_prompt(system, left):
    turns = chat_of(request(messages=[{"role": "user", "content": "a"}], system=system), model())
    assert turns.messages[0]["content"] == (left or system)


def test_a_system_text_may_be_a_string_or_blocks(server):
    path = "/v1/messages/count_tokens"
    more = {"max_tokens": ..., "top_k": ...}
    blocks = [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}]
    one = post(server, path, system="Be\n\nkind", **more).json
    assert post(server, path, system=blocks, **more).json == one
    assert one["input_tokens"] > post(server, path, **more).json["input_tokens"]


def test_a_stop_sequence_is_named_and_not_written(client):
    free = client.messages.create(model="pet", max_tokens=30, messages=HELLO, extra_body=GREEDY)
    text = free.content[0].text
    stop = next(one for one in text[3:] if one != "\N{REPLACEMENT CHARACTER}" and one.strip())
    cut = client.messages.create(
        model="pet", max_tokens=30, messages=HELLO, extra_body=GREEDY, stop_sequences=["zzzz", stop]
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == text[: text.index(stop)]


def test_a_last_assistant_message_is_continued(server):
    prefilled = [*HELLO, {"role": "assistant", "content": "Well"}]
    usage = post(server, messages=prefilled).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 22 + len("Well")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "claude"}, anthropic.NotFoundError),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"tools": [{"name": "x", "input_schema": {}}]}, anthropic.BadRequestError),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, anthropic.BadRequestError),
    ],
    ids=str,
)
def test_errors_have_their_classes_and_bodies(client, fields, kind):
    asked = {"model": "pet", "max_tokens": 2000, "messages": HELLO} | fields
    with pytest.raises(kind) as caught:
        client.messages.create(**asked)
    body = caught.value.body
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
    assert caught.value.request_id == body["request_id"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": ...}, "max_tokens: is required"),
        ({"max_tokens": 0}, "max_tokens: must be 1 or more"),
        ({"model": ...}, "model: is required"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "[0].text"),
        ({"system": 3}, "system"),
        ({"stop": ["x"]}, "stop: is not a field of this endpoint"),
        ({"mcp_servers": [{}]}, "mcp_servers: is not supported yet"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "budget_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(server, fields, words):
    reply = post(server, **fields)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert words in reply.error["message"]


def test_what_asks_for_nothing_is_taken(server):
    inert = {
        "tools": [], "tool_choice": {"type": "auto"}, "service_tier": "auto",
        "metadata": {"user_id": "me"}, "thinking": {"type": "disabled"},
    }  # fmt: skip
    assert post(server, **inert).status == 200


def test_keys_and_busy_servers_speak_the_api_s_words(start_server):
    server = start_server(
        "--no-warmup", "--api-key", "k3y", "--parallel", "1", "--max-queue-depth", "0",
        faults={"step_s": 0.05}, key="k3y",
    )  # fmt: skip
    with Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(model="tiny", max_tokens=1, messages=HELLO)
        assert caught.value.body["error"]["type"] == "authentication_error"
    with Anthropic(base_url=server.url, api_key="k3y", max_retries=0) as client:
        asked = {"model": "tiny", "max_tokens": 300, "messages": HELLO}
        with client.messages.stream(**asked) as stream:
            next(iter(stream))
            with pytest.raises(anthropic.APIStatusError) as caught:
                client.messages.create(**asked)
    assert caught.value.status_code == 529
    assert caught.value.body["error"]["type"] == "overloaded_error"


# -- reasoning and failures, without a server


def model(marks=MARKS):
    tokenizer = SimpleNamespace(piece_bytes=lambda token: bytes([token]))
    facts = SimpleNamespace(name="tiny")
    return SimpleNamespace(thinking_marks=marks, tokenizer=tokenizer, facts=facts)


def request(**fields):
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 5000} | fields
    return parse_body(json.dumps(body).encode(), MessagesRequest, ANTHROPIC_FIELDS)


def response(*, inside=False):
    row = ScheduledRequest("m", SequenceParams((1, 2)))
    generation = Generation((row,), (EncodedPrompt((1, 2), "ab", opens_thinking=inside),), 7)
    choices = choices_of(generation, model().tokenizer, MARKS)
    return ResponseStream(choices, MessagesFormatter(choices[0], "msg_1", "req-1", "tiny"))


def written(*texts, finish=FinishCause.EOS):
    yield Started("m", 0, 2, 7, 0.0)
    yield from (Delta("m", text, (1,), (), index + 1) for index, text in enumerate(texts))
    yield Done("m", finish, None, Usage(2, len(texts)), Timings(2, 0.1, 2, 0.1, 0.1), 7)


def sent(subject, *texts, **more):
    lines = [*subject.lines(written(*texts, **more)), *subject.end()]
    return [json.loads(line.split(b"data: ")[1]) for line in lines]


@pytest.mark.parametrize("inside", [True, False])
def test_thoughts_are_a_block_of_their_own(inside):
    subject = response(inside=inside)
    stream = sent(subject, "hm" if inside else "<think>hm", " so</think>", "Yes")
    blocks = [(e["type"], e["index"]) for e in stream if "index" in e]
    assert blocks == [
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_stop", 1),
    ]  # fmt: skip
    starts = [e["content_block"] for e in stream if "content_block" in e]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [e["delta"] for e in stream if e["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "hm"}
    whole = [(type(block).__name__, *block.__struct_fields__) for block in subject.whole().content]
    assert [name for name, *_ in whole] == ["ThinkingBlock", "TextBlock"]
    assert subject.whole().content[0].thinking == "hm so"


@pytest.mark.parametrize("texts", [(), ("<think>only thoughts",)])
def test_an_answer_without_a_text_has_an_empty_one(texts):
    subject = response()
    stream = sent(subject, *texts)
    starts = [e["content_block"]["type"] for e in stream if "content_block" in e]
    assert starts[-1] == "text"
    assert subject.whole().content[-1].text == ""


def test_a_full_context_has_its_own_reason():
    stream = sent(response(), "x", finish=FinishCause.CONTEXT_EXHAUSTED)
    assert stream[-2]["delta"]["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "enabled", "budget_tokens": 2000}, True),
    ],
)
def test_thinking_is_the_template_s_variable(thinking, expected):
    chat = chat_of(request(thinking=thinking), model())
    assert chat.variables == {"enable_thinking": expected}


@pytest.mark.parametrize("budget", [None, 1023, 5000])
def test_a_budget_has_to_fit(budget):
    with pytest.raises(InvalidParams) as caught:
        chat_of(request(thinking={"type": "enabled", "budget_tokens": budget}), model())
    assert caught.value.field == "thinking.budget_tokens"


def test_a_model_that_does_not_reason_is_not_asked_to():
    assert chat_of(request(), model(marks=())).variables == {}
    with pytest.raises(InvalidParams):
        chat_of(request(thinking={"type": "enabled", "budget_tokens": 2000}), model(marks=()))


def test_turns_of_one_role_are_one_and_thoughts_are_not_said_again():
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "c"}]},
        {"role": "user", "content": "d"},
    ]
    chat = chat_of(request(messages=turns, system="s"), model())
    assert chat.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert not chat.continue_final


def test_a_failure_in_mid_stream_is_raised_by_the_client(start_server):
    server = start_server("--no-warmup", faults={"fail_row": "assistant\n"})

    def begun(client: Anthropic):
        for _ in range(20):
            try:
                return client.messages.create(
                    model="tiny", max_tokens=9, messages=HELLO, stream=True
                )
            except anthropic.InternalServerError:
                continue  # a drawn first token without text: it failed before the stream began
        raise AssertionError("no stream began")

    with Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        stream = begun(client)
        with pytest.raises(anthropic.APIError) as caught:
            list(stream)
    assert caught.value.body["error"]["type"] == "api_error"
