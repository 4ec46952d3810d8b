"""llama.cpp's pages: properties, slots, what is refused, and infill without its tokens."""

import json

import pytest

PROPS = {
    "default_generation_settings", "total_slots", "model_alias", "model_path", "modalities",
    "chat_template", "chat_template_caps", "bos_token", "eos_token", "build_info", "is_sleeping",
    "endpoint_slots", "endpoint_props", "endpoint_metrics", "speculative", "geometry",
    "capabilities", "kv_cache_mode",
}  # fmt: skip
SLOT = {
    "id", "is_processing", "id_task", "n_ctx", "speculative", "n_prompt_tokens",
    "n_prompt_tokens_processed", "n_prompt_tokens_cache", "params", "next_token",
}  # fmt: skip


def test_properties_describe_the_model_and_the_server(server):
    props = server.ask("GET", "/props").json
    assert set(props) == PROPS
    assert set(props["default_generation_settings"]) == {"params", "n_ctx"}
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (props["total_slots"], props["model_alias"]) == (4, "pet")
    assert (props["is_sleeping"], props["endpoint_slots"], props["endpoint_props"]) == (
        False, True, False,
    )  # fmt: skip
    assert "im_start" in props["chat_template"]
    assert props["eos_token"] == "<|im_end|>"
    assert props["kv_cache_mode"] == "dense"
    assert (props["geometry"]["layers"], props["geometry"]["vocab_size"]) == (2, 259)


def test_changing_properties_takes_an_option(server):
    reply = server.ask("POST", "/props", {})
    assert (reply.status, reply.error["type"]) == (501, "not_supported_error")
    assert "--props" in reply.error["message"]


def test_idle_slots_are_listed_whole(server):
    server.wait_until_free()
    slots = server.ask("GET", "/slots").json
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert all(set(slot) == SLOT for slot in slots)
    assert not any(slot["is_processing"] for slot in slots)
    assert server.ask("GET", "/slots?fail_on_no_slot=1").status == 200


def test_a_busy_slot_shows_counts_and_no_text_and_a_full_server_says_so(start_server):
    server = start_server("--parallel", "1", "--props", faults={"step_s": 0.05})
    assert server.ask("POST", "/props", {}).json == {"success": True}
    assert server.ask("GET", "/props").json["endpoint_props"]
    connection = server.send_chat(max_tokens=400, stream=True, logit_bias={"65": 100})
    try:
        server.wait_for(lambda: server.ask("GET", "/slots").json[0]["is_processing"])
        server.wait_for(lambda: server.ask("GET", "/slots").json[0]["next_token"][0]["n_decoded"])
        reply = server.ask("GET", "/slots")
        (slot,) = reply.json
        assert set(slot) == SLOT
        assert (slot["n_prompt_tokens"], slot["n_prompt_tokens_processed"]) == (24, 24)
        assert slot["params"]["n_predict"] == 400
        assert slot["id_task"] >= 0
        assert "AAA" not in reply.body.decode()
        full = server.ask("GET", "/slots?fail_on_no_slot=1")
        assert (full.status, full.error["message"]) == (503, "no slot available")
        # Load is no matter of health.
        assert server.ask("GET", "/health").status == 200
    finally:
        connection.close()


def test_slots_can_be_hidden_and_infill_reads_prefix_and_suffix(start_server, tmp_path):
    server = start_server("--no-slots", "--no-warmup", "-m", str(infill_model(tmp_path / "fim")))
    reply = server.ask("GET", "/slots")
    assert (reply.status, reply.error["code"]) == (501, 501)
    assert "--no-slots" in reply.error["message"]
    asked = {
        "input_prefix": "ab", "input_suffix": "yz<|fim_middle|>", "prompt": "c",
        "input_extra": [{"filename": "x.py", "text": "q"}], "n_predict": 3, "seed": 1,
    }  # fmt: skip
    body = server.ask("POST", "/infill", asked).json
    assert body["prompt"] == (
        "x.py\nq\n<|fim_prefix|>ab<|fim_suffix|>yz<|fim_middle|><|fim_middle|>c"
    )
    # The mark that the client wrote is its letters, the model's own are one token each.
    assert body["tokens_evaluated"] == len("x.py\nq\nabyz<|fim_middle|>c") + 3
    assert (body["tokens_predicted"], body["stop"]) == (3, True)
    ids = [*b"x.py\nq\n", 259, *b"ab", 260, *b"yz<|fim_middle|>", 261, *b"c"]
    same = server.ask("POST", "/completion", {"prompt": ids, "n_predict": 3, "seed": 1}).json
    assert same["content"] == body["content"]


def test_a_model_without_infill_tokens_says_so_by_its_name(server):
    reply = server.ask("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert (reply.status, reply.error["type"]) == (501, "not_supported_error")
    assert reply.error["message"].startswith("tiny has no fill-in-the-middle tokens")


@pytest.mark.parametrize("path", ["/tools", "/cors-proxy"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_would_reach_out_of_the_server_is_disabled(server, method, path):
    reply = server.ask(method, path)
    assert reply.status == 403
    assert reply.error == {
        "code": 403,
        "message": "this feature is disabled",
        "type": "feature_disabled",
    }


def infill_model(folder):
    """The tiny model with three more tokens."""
    from tests.engine.models.tiny import write_tiny

    write_tiny(folder, vocab_size=262)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    last = tokenizer["added_tokens"][-1]
    for index, name in enumerate(("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")):
        tokenizer["added_tokens"].append({**last, "id": 259 + index, "content": name})
    path.write_text(json.dumps(tokenizer))
    return folder
