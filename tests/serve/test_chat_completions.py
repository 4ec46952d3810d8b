"""``/v1/chat/completions`` of a real server: shapes, streams, sampling, refusals."""

import socket

import pytest

from tests.engine.models.tiny import write_tiny
from tests.serve.conftest import Starter, environ_of

STREAM = {"stream": True, "seed": 5, "max_tokens": 12}


def joined(events, field="content"):
    return "".join(
        choice["delta"].get(field) or "" for event in events for choice in event["choices"]
    )


def test_a_chat_completion_has_openai_s_shape(server):
    reply = server.chat(max_tokens=6, seed=3)
    body = reply.json
    assert reply.status == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "pet"
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    usage = body["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["seed"] == 3
    assert body["timings"]["predicted_n"] == 6


def test_chunks_share_id_created_and_model_and_say_role_and_reason_once(server):
    events = server.chat(**STREAM).events
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [("role" in delta) for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["length"]


def test_a_stream_says_what_the_whole_answer_says(server):
    whole = server.chat(seed=5, max_tokens=40).json
    events = server.chat(stream=True, seed=5, max_tokens=40).events
    assert joined(events) == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        pytest.param(None, 0, id="null"),
        pytest.param({}, 0, id="empty"),
        pytest.param({"include_usage": False}, 0, id="off"),
        pytest.param({"include_usage": True}, 1, id="on"),
    ],
)
def test_counts_come_in_one_last_chunk_and_only_when_asked_for(server, options, counts):
    events = server.chat(**STREAM, stream_options=options).events
    bare = [event for event in events if not event["choices"]]
    assert len(bare) == counts
    if counts:
        assert events[-1]["usage"]["completion_tokens"] == 12
        assert all(event["usage"] is None for event in events[:-1])
    else:
        assert all("usage" not in event for event in events)


def test_continuous_counts_come_in_every_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.chat(**STREAM, stream_options=options).events
    written = [event["usage"]["completion_tokens"] for event in events]
    assert written == sorted(written)
    assert written[0] == 0
    assert written[-1] == 12


def test_choices_are_rows_of_one_batch_and_the_first_is_the_lone_answer(server):
    alone = server.chat(seed=9, max_tokens=16, temperature=1).json["choices"][0]
    several = server.chat(seed=9, max_tokens=16, temperature=1, n=3).json
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert texts[0] == alone["message"]["content"]
    assert len(set(texts)) == 3
    assert several["usage"]["completion_tokens"] == 48


def test_a_stream_of_choices_sends_each_role_and_reason_once(server):
    events = server.chat(**STREAM, n=2).events
    for index in (0, 1):
        own = [c for event in events for c in event["choices"] if c["index"] == index]
        assert sum("role" in choice["delta"] for choice in own) == 1
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["length"]


def test_seeds_repeat_their_text_and_differ_from_one_another(server):
    texts = {}
    for seed in (11111, 22222, 33333):
        first, second = (
            server.chat(seed=seed, temperature=1, max_tokens=16).json for _ in range(2)
        )
        assert first["choices"] == second["choices"]
        texts[seed] = first["choices"][0]["message"]["content"]
    assert len(set(texts.values())) == 3


def test_without_a_seed_answers_differ_and_their_seed_is_returned(server):
    answers = [server.chat(temperature=1, max_tokens=16).json for _ in range(5)]
    assert len({one["choices"][0]["message"]["content"] for one in answers}) > 1
    again = server.chat(temperature=1, max_tokens=16, seed=answers[0]["seed"]).json
    assert again["choices"] == answers[0]["choices"]


@pytest.mark.parametrize("seed", [0, 2**53 - 1])
def test_every_seed_below_2_to_the_53_is_a_seed(server, seed):
    assert server.chat(seed=seed, max_tokens=1).json["seed"] == seed


@pytest.mark.parametrize(
    "name", ["max_tokens", "max_completion_tokens", "n_predict"], ids=lambda name: name
)
def test_the_length_has_three_names(server, name):
    assert server.chat(ignore_eos=True, **{name: 3}).json["usage"]["completion_tokens"] == 3


def test_no_tokens_may_be_asked_for(server):
    body = server.chat(max_tokens=0).json
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "length"


def test_an_answer_without_a_bound_ends_at_the_context(server):
    body = server.chat(max_tokens=-1, ignore_eos=True).json
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 512


def test_log_probabilities_join_to_the_content_also_in_a_stream(server):
    asked = {"logprobs": True, "top_logprobs": 3, "seed": 4, "max_tokens": 8}
    whole = server.chat(**asked).json["choices"][0]
    places = whole["logprobs"]["content"]
    assert len(places) == 8
    for place in places:
        assert place["logprob"] <= 0
        assert len(place["top_logprobs"]) == 3
    told = b"".join(bytes(place["bytes"]) for place in places)
    assert told.decode(errors="replace") == whole["message"]["content"]
    events = server.chat(**asked, stream=True).events
    streamed = [
        place
        for event in events
        for choice in event["choices"]
        for place in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == places


def test_log_probabilities_are_null_when_not_asked_for(server):
    assert server.chat(max_tokens=2).json["choices"][0]["logprobs"] is None


def test_a_stop_text_ends_the_answer_unseen_on_both_ways(server):
    text = server.complete("Hello", seed=1, max_tokens=30).json["choices"][0]["text"]
    stop = text[5:7]
    whole = server.complete("Hello", seed=1, max_tokens=30, stop=[stop, "\0never"]).json
    events = server.complete("Hello", seed=1, max_tokens=30, stop=stop, stream=True).events
    streamed = "".join(choice["text"] for event in events for choice in event["choices"])
    assert whole["choices"][0]["text"] == streamed == text[: text.index(stop)]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_of_a_stopped_answer_end_with_its_text(server):
    text = server.complete("Hello", seed=1, max_tokens=30).json["choices"][0]["text"]
    asked = {"seed": 1, "max_tokens": 30, "stop": text[5:7], "logprobs": 1}
    choice = server.complete("Hello", **asked).json["choices"][0]
    assert len(choice["logprobs"]["tokens"]) < 30
    assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"])


def test_an_answer_continues_the_assistant_s_turn_when_asked_to(server):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    usual = server.chat(messages, max_tokens=1).json["usage"]["prompt_tokens"]
    inside = server.chat(
        messages, max_tokens=1, continue_final_message=True, add_generation_prompt=False
    ).json["usage"]["prompt_tokens"]
    assert inside < usual


def test_a_developer_is_the_system_and_tool_turns_are_taken(server):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    assert server.chat(messages, max_tokens=1).status == 200


@pytest.mark.parametrize("name", ["tiny", "pet", "default"])
def test_the_model_goes_by_its_folder_its_alias_and_default(server, name):
    assert server.chat(model=name, max_tokens=1).status == 200


def test_another_model_is_not_found(server):
    reply = server.chat(model="owner/other")
    assert (reply.status, reply.error["param"]) == (404, "model")
    assert reply.error["code"] == "model_not_found"


def test_another_model_is_looked_for_on_no_network(start_server):
    """mlx-lm#1133, mlx#1841."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.setblocking(False)
        url = f"http://127.0.0.1:{hub.getsockname()[1]}"
        server = start_server(HF_ENDPOINT=url, HF_HUB_OFFLINE="0")
        assert server.chat(model="owner/other").status == 404
        assert server.complete(model="owner/other").status == 404
        assert server.ask("GET", "/v1/models/owner/other").status == 404
        with pytest.raises(BlockingIOError):
            hub.accept()


def test_a_base_model_completes_texts_and_refuses_chats_by_name(tmp_path, serve_home):
    """omlx#1343."""
    model = write_tiny(tmp_path / "base")
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    starter = Starter(environ_of(serve_home), model)
    try:
        server = starter()
        for stream in (False, True):
            reply = server.chat(stream=stream)
            assert (reply.status, reply.error["param"]) == (400, "messages")
            assert "base has no chat template" in reply.error["message"]
        assert server.complete(max_tokens=3).status == 200
    finally:
        starter.end()


def test_a_bias_and_special_parameters_are_honoured(server):
    body = server.complete("a", max_tokens=4, temperature=0, logit_bias={"65": 100}).json
    assert body["choices"][0]["text"] == "AAAA"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0},
        {"top_k": 10**6},
        {"temperature": 1e-9},
        {"repetition_penalty": 1.3, "dry_multiplier": 0.8, "presence_penalty": 1},
        {"xtc_probability": 1, "xtc_threshold": 0.05},
        {"mirostat": 2, "mirostat_tau": 3},
        {"min_keep": 2, "dynatemp_range": 0.5},
        {"typical_p": 0.5, "top_n_sigma": 1},
        {"loop_max_pattern": 4, "loop_min_count": 3},
        {"min_tokens": 4, "stop_token_ids": [65]},
    ],
    ids=str,
)
def test_knobs_at_their_ends_give_an_answer(server, fields):
    assert server.chat(max_tokens=6, **fields).status == 200


INERT = [
    {"user": "me"}, {"metadata": {"a": "b"}}, {"store": True}, {"service_tier": "auto"},
    {"parallel_tool_calls": False}, {"tools": []}, {"tools": None}, {"tool_choice": "none"},
    {"response_format": {"type": "text"}}, {"response_format": None}, {"seed": None},
    {"speculative.n_max": 4}, {"cache_prompt": False}, {"stop": None}, {"best_of": 1},
    {"reasoning_effort": "low"}, {"chat_template_kwargs": {"enable_thinking": False}},
    {"temperature": None, "max_tokens": None, "n": None, "stream": None, "logit_bias": None},
]  # fmt: skip


@pytest.mark.parametrize("fields", INERT, ids=str)
def test_fields_that_ask_for_nothing_are_taken(server, fields):
    assert server.chat(**{"max_tokens": 2, **fields, "max_completion_tokens": 2}).status == 200


REFUSED = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"no_such_field": 1}, "no_such_field"),
    ({"no_such_field": None}, "no_such_field"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"typical_p": 0}, "typical_p"),
    ({"seed": 2**53}, "seed"),
    ({"seed": -2}, "seed"),
    ({"logit_bias": {"191222": -100}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop_token_ids": [259]}, "stop_token_ids"),
    ({"stop": [1]}, "stop[0]"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"best_of": 2}, "best_of"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
def test_what_cannot_be_honoured_is_refused_by_name(server, fields, param):
    reply = server.chat(**fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert reply.error["type"] == "invalid_request_error"
    assert set(reply.error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "messages",
    [None, "string", [123], [{}], [{"role": 123}], [{"role": "user", "content": 123}], []],
    ids=str,
)
def test_messages_of_a_wrong_shape_are_refused(server, messages):
    reply = server.chat(messages)
    assert reply.status == 400
    assert reply.error["param"].startswith("messages")


def test_a_prompt_longer_than_the_context_is_refused_with_both_counts(server):
    for stream in (False, True):
        reply = server.chat([{"role": "user", "content": "x" * 600}], stream=stream)
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert "619" in reply.error["message"]
        assert "512" in reply.error["message"]


@pytest.mark.parametrize(
    ("lane", "status"), [("high", 200), ("LOW", 200), ("normal", 200), ("urgent", 400)]
)
def test_a_header_names_the_lane(server, lane, status):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    reply = server.ask("POST", "/v1/chat/completions", body, X_Priority=lane)
    assert reply.status == status
