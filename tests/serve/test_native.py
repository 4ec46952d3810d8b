"""``/completion``, in llama.cpp's shape: keys, bounds, streams, refusals."""

import json

import msgspec
import pytest

from engine.outcome import Timings
from mlxcel_cli.serve.llamacpp.response import selected
from mlxcel_cli.serve.llamacpp.schema import LLAMACPP_FIELDS, SAMPLER_KEYS, SAMPLERS
from mlxcel_cli.serve.progress import timings_body

FINAL = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted",
    "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated", "stop_type",
    "stopping_word", "tokens_cached", "timings",
}  # fmt: skip
FRAME = {"content", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"}
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
    "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip
ONLY_A = {"logit_bias": {"65": 100}}
END = 258


def ask(server, path="/completion", **fields):
    return server.ask("POST", path, {"prompt": "Hello", "seed": 1, **fields})


def frames(reply):
    """A stream's frames: nothing but data, and no end mark."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    *lines, rest = reply.body.decode().split("\n\n")
    assert rest == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_the_object_has_llama_cpp_s_keys_and_no_choices(server, path):
    body = ask(server, path, n_predict=4).json
    assert set(body) == FINAL
    assert set(body["timings"]) == TIMINGS
    assert (body["index"], body["stop"], body["model"], body["prompt"]) == (0, True, "pet", "Hello")
    assert (body["tokens_predicted"], body["tokens_evaluated"]) == (4, 5)
    assert (body["stop_type"], body["stopping_word"], body["truncated"]) == ("limit", "", False)
    assert body["tokens"] == []
    assert 0 <= body["id_slot"] < 4


def test_the_settings_are_those_that_ran_in_llama_cpp_s_words(server):
    told = ask(server, n_predict=2, top_k=7, repeat_penalty=1.5, stop=["x"], min_p=0.1).json
    settings = told["generation_settings"]
    assert settings["samplers"] == list(SAMPLERS)
    expected = {
        "n_predict": 2, "seed": 1, "top_k": 7, "repeat_penalty": 1.5, "stop": ["x"],
        "min_p": 0.1, "n_probs": 0, "stream": False, "chat_format": "Content-only",
    }  # fmt: skip
    assert {key: settings[key] for key in expected} == expected


@pytest.mark.parametrize("prompt", ["", "Hello there, this prompt is long enough to be cached."])
def test_tokens_cached_is_what_the_slot_holds_also_when_the_prompt_cache_had_it(server, prompt):
    asked = {"prompt": prompt or "Hello", "n_predict": 3, "seed": 5}
    first, second = (ask(server, **asked).json for _ in range(2))
    assert first["tokens_cached"] == second["tokens_cached"] == len(asked["prompt"]) + 3 - 1
    assert first["content"] == second["content"]
    assert first["tokens_evaluated"] == second["tokens_evaluated"]
    timings = second["timings"]
    assert timings["prompt_n"] == second["tokens_evaluated"] - timings["cache_n"]
    assert (timings["cache_n"] > 0) == bool(prompt)


def test_asked_for_no_token_it_writes_one(server):
    body = ask(server, n_predict=0, return_tokens=True).json
    assert (body["tokens_predicted"], len(body["tokens"])) == (1, 1)
    assert body["tokens_cached"] == body["tokens_evaluated"]
    assert body["timings"]["predicted_per_second"] == 0


def test_minus_one_continues_to_the_context_s_end_and_says_it_was_cut(server):
    body = ask(server, n_predict=-1, logit_bias=[[END, False], ["A", 50]], prompt="x" * 480).json
    assert (body["truncated"], body["stop_type"]) == (True, "limit")
    assert body["tokens_predicted"] > 20


@pytest.mark.parametrize("bad", [-2, 2**31])
def test_other_bounds_are_refused_by_name(server, bad):
    reply = ask(server, n_predict=bad)
    assert reply.status == 400
    assert reply.error["message"].startswith("n_predict: must be -1 (no bound) or from 0 to")


def test_why_it_stopped(server):
    word = ask(server, n_predict=9, stop=["AAA"], **ONLY_A).json
    assert (word["stop_type"], word["stopping_word"], word["content"]) == ("word", "AAA", "")
    end = ask(server, n_predict=9, logit_bias=[[END, 100.0]]).json
    assert (end["stop_type"], end["stopping_word"], end["tokens_predicted"]) == ("eos", "", 0)


def test_a_new_line_is_reported(server):
    body = ask(server, n_predict=2, logit_bias={"10": 100}).json
    assert (body["content"], body["has_new_line"]) == ("\n\n", True)
    assert not ask(server, n_predict=2, **ONLY_A).json["has_new_line"]


def test_a_bias_may_be_a_text_s_and_false_forbids(server):
    text = ask(server, n_predict=3, logit_bias=[["A", 100]]).json["content"]
    assert text == "AAA"
    less = ask(server, n_predict=3, logit_bias=[["A", 100], ["B", 99], [65, False]]).json
    assert less["content"] == "BBB"


@pytest.mark.parametrize("pairs", [[[1]], [[True, 1]], [["A", True]], [["A", "B"]], [[259, 1]]])
def test_a_bias_that_is_no_pair_is_refused(server, pairs):
    reply = ask(server, logit_bias=pairs)
    assert reply.status == 400
    assert reply.error["message"].startswith("logit_bias")


def test_texts_and_ids_make_one_prompt_and_texts_alone_several(server):
    mixed = ask(server, prompt=["Hel", 108, "o"], n_predict=4).json
    assert mixed["content"] == ask(server, n_predict=4).json["content"]
    assert (mixed["prompt"], mixed["tokens_evaluated"]) == ("Hello", 5)
    both = ask(server, prompt=["Hello", [66, 121]], n_predict=2).json
    assert [(one["index"], one["prompt"]) for one in both] == [(0, "Hello"), (1, "By")]


def test_a_stream_is_frames_and_the_object_without_an_end_mark(server):
    whole = ask(server, n_predict=8, **ONLY_A).json
    *some, last = frames(ask(server, n_predict=8, stream=True, **ONLY_A))
    assert some
    assert all(set(frame) == FRAME for frame in some)
    assert not any(frame["stop"] for frame in some)
    assert "".join(frame["content"] for frame in some) == whole["content"] == "A" * 8
    assert [frame["tokens_predicted"] for frame in some][-1] == 8
    assert set(last) == FINAL
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    same = FINAL - {"content", "timings", "id_slot", "generation_settings"}
    assert {key: last[key] for key in same} == {key: whole[key] for key in same}


def test_frames_of_several_prompts_say_whose_they_are(server):
    told = frames(ask(server, prompt=["Hello", "By"], n_predict=3, stream=True, **ONLY_A))
    for index in (0, 1):
        mine = [frame for frame in told if frame["index"] == index]
        assert "".join(frame["content"] for frame in mine) == "AAA"
        assert [frame["stop"] for frame in mine].count(True) == 1


def test_tokens_are_returned_when_they_are_asked_for(server):
    assert ask(server, n_predict=3, return_tokens=True, **ONLY_A).json["tokens"] == [65] * 3
    *some, last = frames(ask(server, n_predict=3, return_tokens=True, stream=True, **ONLY_A))
    assert [token for frame in some for token in frame["tokens"]] == [65] * 3
    assert last["tokens"] == []


def test_likely_tokens_are_returned_at_each_place(server):
    asked = {"n_predict": 3, "n_probs": 2, "temperature": 0}
    whole = ask(server, **asked).json
    places = whole["completion_probabilities"]
    assert len(places) == 3
    for place in places:
        assert set(place) == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert [set(one) for one in place["top_logprobs"]] == [set(place) - {"top_logprobs"}] * 2
        assert place["top_logprobs"][0]["id"] == place["id"]
        assert place["logprob"] <= 0
    told = frames(ask(server, stream=True, **asked))
    assert [place for frame in told for place in frame["completion_probabilities"]] == places
    assert ask(server, n_probs=101).error["message"].startswith("n_probs")


def test_timings_come_with_every_frame_that_asks_real_from_the_first(server):
    *some, last = frames(ask(server, n_predict=4, stream=True, timings_per_token=True, **ONLY_A))
    first = some[0]["timings"]
    assert set(first) == TIMINGS
    assert (first["prompt_n"], first["predicted_n"]) == (5, 1)
    assert first["prompt_ms"] == last["timings"]["prompt_ms"] > 0
    assert [frame["timings"]["predicted_n"] for frame in some] == [1, 2, 3, 4]


def test_progress_is_reported_from_the_cached_part_to_the_whole_prompt(server):
    told = frames(ask(server, n_predict=1, stream=True, return_progress=True, prompt="q" * 50))
    progress = [one["prompt_progress"] for one in told if "prompt_progress" in one]
    assert [set(one) for one in progress] == [{"total", "cache", "processed", "time_ms"}] * len(
        progress
    )
    assert (progress[0]["processed"], progress[-1]["processed"]) == (0, 50)
    assert {one["total"] for one in progress} == {50}


def test_response_fields_choose_from_the_object_and_the_last_frame_only(server):
    paths = ["content", "timings/prompt_n", "generation_settings/top_k", "no", "content/no", ""]
    body = ask(server, n_predict=2, response_fields=paths, **ONLY_A).json
    chosen = {"content": "AA", "timings/prompt_n": 5, "generation_settings/top_k": 40}
    assert body == chosen
    *some, last = frames(
        ask(server, n_predict=2, response_fields=paths, stream=True, cache_prompt=False, **ONLY_A)
    )
    assert last == chosen | {"content": ""}
    assert all(set(frame) == FRAME for frame in some)


@pytest.mark.parametrize("paths", ["content", [1], ["content", 1], {}, []])
def test_response_fields_that_are_no_list_of_texts_choose_nothing(server, paths):
    assert set(ask(server, n_predict=1, response_fields=paths).json) == FINAL


def test_a_path_is_stored_under_its_whole_text():
    assert selected({"a": {"b": {"c": 1}}, "d": [1]}, ["a/b/c", "d/0", "a/x", "/a", "d"]) == {
        "a/b/c": 1,
        "d": [1],
    }


@pytest.mark.parametrize("name", sorted(LLAMACPP_FIELDS.unsupported))
def test_a_key_that_is_not_supported_names_what_to_do_and_is_taken_when_it_asks_nothing(
    server, name
):
    for value in (*LLAMACPP_FIELDS.unsupported[name], None):
        assert ask(server, n_predict=0, **{name: value}).status == 200
    reply = ask(server, **{name: [["other"]]})
    assert (reply.status, set(reply.error)) == (400, {"code", "message", "type"})
    assert reply.error["message"] == f"{name}: {LLAMACPP_FIELDS.advice[name]}"
    assert len(LLAMACPP_FIELDS.advice[name]) > 20


@pytest.mark.parametrize("samplers", [["top_k"], list(reversed(SAMPLERS)), "kt", []])
def test_another_order_of_samplers_is_refused(server, samplers):
    assert ask(server, samplers=samplers).error["message"].startswith("samplers: ")
    assert ask(server, samplers=SAMPLER_KEYS, n_predict=0).status == 200


def test_several_answers_are_refused_under_either_name(server):
    for name in ("n", "n_cmpl"):
        assert ask(server, **{name: 2}).error["message"].startswith(f"{name}: ")
        assert ask(server, n_predict=0, **{name: 1}).status == 200


def test_inert_keys_are_taken(server):
    inert = {"speculative.n_max": 3, "stream_options": {"include_usage": True}}
    assert set(ask(server, n_predict=1, **inert).json) == FINAL
    reply = ask(server, stream_options={"include_usage": "yes"})
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [259]}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"n_predict": "3"}, "n_predict"),
        ({"strange": 1}, "strange"),
        ({"model": "other"}, "not served"),
        ({"temperature": -1}, "temperature"),
        ({"prompt": "x" * 600}, "512"),
    ],
    ids=str,
)
def test_errors_carry_a_number_and_the_field(server, fields, words):
    reply = ask(server, **fields)
    assert set(reply.error) == {"code", "message", "type"}
    assert reply.error["code"] == reply.status
    assert reply.status in (400, 404)
    assert words in reply.error["message"]


def test_a_failure_in_mid_stream_is_a_frame_with_the_error(start_server):
    server = start_server("--no-warmup", faults={"fail_row": "HelloA"})
    told = frames(ask(server, n_predict=9, stream=True, **ONLY_A))
    assert set(told[-1]["error"]) == {"code", "message", "type"}
    assert told[-1]["error"]["code"] == 500
    assert all(not frame["stop"] for frame in told[:-1])
    assert ask(server, n_predict=9, **ONLY_A).error["code"] == 500


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_openai_s_streams_carry_timings_and_progress_for_whom_asks(server, path):
    prompt = "Read me, please. " * 5
    body = {"max_tokens": 3, "stream": True, "cache_prompt": False, **ONLY_A}
    if path == "/v1/completions":
        body["prompt"] = prompt
    else:
        body["messages"] = [{"role": "user", "content": prompt}]
    plain = server.ask("POST", path, body).events
    assert [("timings" in one, "prompt_progress" in one) for one in plain][-1] == (True, False)
    assert not any("timings" in one or "prompt_progress" in one for one in plain[:-1])
    asked = {"timings_per_token": True, "return_progress": True}
    told = server.ask("POST", path, body | asked).events
    progress = [one["prompt_progress"] for one in told if "prompt_progress" in one]
    total = progress[0]["total"]
    assert [one["processed"] for one in progress][:: len(progress) - 1] == [0, total]
    timed = [one["timings"] for one in told if "timings" in one]
    assert [one["predicted_n"] for one in timed] == [1, 2, 3, 3]
    assert {(one["prompt_n"], one["prompt_ms"]) for one in timed} == {
        (total, timed[0]["prompt_ms"])
    }


@pytest.mark.parametrize("rounds", [0, 2])
def test_drafts_are_in_the_timings_once_a_round_ran(rounds):
    timings = Timings(3, 0.5, 5, 1.0, 0.6, cache_n=2, draft_n=7, draft_n_accepted=4,
                      draft_rounds=rounds)  # fmt: skip
    told = msgspec.to_builtins(timings_body(timings))
    drafts = {
        "draft_n": 7, "draft_n_accepted": 4, "draft_rounds": 2, "draft_kind": "prompt-lookup",
    }  # fmt: skip
    assert set(told) == TIMINGS | (set(drafts) if rounds else set())
    assert {key: told[key] for key in told if key in drafts} == (drafts if rounds else {})
    assert (told["predicted_per_token_ms"], told["predicted_per_second"]) == (250, 4)


@pytest.mark.parametrize("predicted", [0, 1])
def test_rates_of_nothing_are_zero(predicted):
    told = timings_body(Timings(0, 0.0, predicted, 0.0, 0.0))
    assert (told.prompt_per_token_ms, told.prompt_per_second) == (0, 0)
    assert (told.predicted_per_token_ms, told.predicted_per_second) == (0, 0)
