"""``/v1/completions`` of a real server: prompts, echo, legacy log-probabilities."""

import pytest


def test_a_completion_has_openai_s_shape(server):
    body = server.complete("Hello", max_tokens=4, seed=1).json
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    assert body["usage"]["prompt_tokens"] == 5


def test_token_ids_are_the_text_they_spell(server):
    asked = {"max_tokens": 8, "seed": 1}
    text = server.complete("Hello", **asked).json["choices"]
    assert server.complete(list(b"Hello"), **asked).json["choices"] == text
    assert server.complete([list(b"Hello")], **asked).json["choices"] == text


def test_several_prompts_are_answered_in_their_order_each_with_its_choices(server):
    asked = {"max_tokens": 8, "seed": 1, "n": 2}
    body = server.complete(["Hello", "Bye"], **asked).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    alone = server.complete("Bye", **asked).json["choices"]
    assert [c["text"] for c in body["choices"][2:]] == [c["text"] for c in alone]
    assert body["usage"]["prompt_tokens"] == len("HelloBye")


def test_an_echo_begins_with_the_prompt_also_in_a_stream(server):
    asked = {"max_tokens": 3, "seed": 1, "echo": True}
    text = server.complete("Hello", **asked).json["choices"][0]["text"]
    assert text.startswith("Hello")
    events = server.complete("Hello", **asked, stream=True).events
    assert "".join(c["text"] for event in events for c in event["choices"]) == text
    assert server.complete(list(b"Hello"), **asked).json["choices"][0]["text"] == text


def test_an_echo_of_token_ids_shows_special_marks_too(server):
    text = "<|im_start|>user\nhi"
    ids = server.ask("POST", "/tokenize", {"content": text, "parse_special": True}).json["tokens"]
    for prompt in (text, ids):
        body = server.complete(prompt, max_tokens=0, echo=True).json
        assert body["choices"][0]["text"] == text


def test_an_echo_of_no_tokens_is_the_prompt(server):
    body = server.complete("Hello", max_tokens=0, echo=True).json
    assert body["choices"][0]["text"] == "Hello"


@pytest.mark.parametrize("count", [0, 3])
def test_legacy_log_probabilities_are_lists_of_equal_length(server, count):
    choice = server.complete("Hello", max_tokens=5, seed=1, logprobs=count).json["choices"][0]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(one) for one in logprobs.values()} == {5}
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    assert all(len(top) <= count + 1 for top in logprobs["top_logprobs"])
    assert logprobs["text_offset"][0] == 0


def test_a_text_s_special_marks_are_tokens(server):
    marked = server.complete("<|im_start|>user", max_tokens=1).json["usage"]["prompt_tokens"]
    assert marked == 1 + len("user")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [259]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(server, fields, param):
    reply = server.complete(**{"prompt": "Hello", **fields})
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("field", ["stop", "dry_sequence_breakers"])
@pytest.mark.parametrize(
    "texts",
    [[f"x{i}" for i in range(65)], ["x" * 16_385], ["x" * 8000] * 3],
    ids=["many", "one long", "long together"],
)
def test_texts_that_every_row_has_to_prepare_are_bounded(server, field, texts):
    reply = server.complete(max_tokens=1, dry_multiplier=1, **{field: texts})
    assert (reply.status, reply.error["param"]) == (400, field)


@pytest.mark.parametrize("field", ["stop", "dry_sequence_breakers"])
def test_long_texts_below_the_bound_are_taken(server, field):
    assert server.complete(max_tokens=1, dry_multiplier=1, **{field: ["x" * 4000]}).status == 200


def test_more_answers_at_once_than_ever_fit_are_refused_for_good(server):
    reply = server.complete(["a"] * 64, n=8, max_tokens=1)
    assert (reply.status, reply.error["param"]) == (400, "n")
    assert "at most 36 fit" in reply.error["message"]
    assert server.complete(["a"] * 4, n=8, max_tokens=1).status == 200
