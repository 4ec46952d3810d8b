"""What clients see of the prompt cache."""

import signal

import pytest

STORY = "Once upon a time there was a cache that remembered what it had read before."


def ask(server, story=STORY, **fields):
    messages = [{"role": "user", "content": story}]
    return server.chat(messages, max_tokens=5, temperature=0, seed=1, **fields).json


def cached(reply) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def stats(server):
    return server.ask("GET", "/v1/cache/stats").json


def test_the_same_question_again_is_answered_from_the_cache_and_alike(server):
    first, again = ask(server, prompt_cache_key="again"), ask(server, prompt_cache_key="again")
    assert cached(first) == 0
    assert cached(again) == again["timings"]["cache_n"] == again["usage"]["prompt_tokens"] - 1
    assert again["choices"] == first["choices"]


def test_tokens_from_the_cache_are_counted_over_all_prompts_of_a_request(server):
    prompts = [f"{STORY} {name}" for name in ("first", "other")]
    asked = {"max_tokens": 2, "n": 2, "prompt_cache_key": "several"}
    server.complete(prompts, **asked)
    again = server.complete(prompts, **asked).json
    assert cached(again) == again["usage"]["prompt_tokens"] - 2


@pytest.mark.parametrize("name", ["prompt_cache_key", "user"])
def test_who_names_another_key_finds_nothing(server, name):
    ask(server, **{name: f"{name} one"})
    assert cached(ask(server, **{name: f"{name} two"})) == 0
    assert cached(ask(server, **{name: f"{name} one"})) > 0


def test_who_opts_out_finds_nothing_and_leaves_nothing(server):
    key = {"prompt_cache_key": "opted out"}
    assert cached(ask(server, cache_prompt=False, **key)) == 0
    assert cached(ask(server, **key)) == 0
    assert cached(ask(server, cache_prompt=False, **key)) == 0


def test_a_short_question_behind_the_same_beginning_hears_nothing_of_the_other(server):
    ask(server, STORY + " The secret is 4711.", prompt_cache_key="secret")
    warm = ask(server, STORY + " hi", prompt_cache_key="secret")
    cold = ask(server, STORY + " hi", cache_prompt=False)
    assert cached(warm) >= 32
    assert warm["choices"] == cold["choices"]


def test_conversations_in_turn_are_answered_as_if_each_were_the_first(server):
    """A, B, C and A again, each with its next turn; cold is the same without the cache."""
    turns = {}
    for name in "ABCA":
        asked = turns.setdefault(name, [{"role": "user", "content": f"{STORY} Tell me of {name}."}])
        fields = {"max_tokens": 8, "temperature": 0}
        warm = server.chat(asked, prompt_cache_key="turns", **fields).json
        cold = server.chat(asked, cache_prompt=False, **fields).json
        assert warm["choices"] == cold["choices"]
        assert cached(cold) == 0
        assert cached(warm) >= 32 or name == "A"
        answer = {"role": "assistant", "content": warm["choices"][0]["message"]["content"]}
        turns[name] = [*asked, answer, {"role": "user", "content": "And then?"}]
    assert cached(warm) > len(STORY), "the second turn of A knows the first"


@pytest.mark.parametrize("tokens", [1, 5])
def test_an_answer_that_was_broken_off_is_whole_when_it_is_asked_for_again(start_server, tokens):
    server = start_server("--prompt-cache-min-tokens", "1", faults={"step_s": 0.02})
    asked = {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "stream": True}
    with server.send_chat(**asked) as connection:
        read = b""
        while read.count(b'"content"') < tokens:
            read += connection.recv(4096)
    server.wait_for(lambda: server.metric("mlxcel_requests_cancelled_total") == 1)
    again = server.chat(**asked | {"stream": False}).json
    cold = server.chat(**asked | {"stream": False, "cache_prompt": False}).json
    assert cached(again) > 0
    assert again["choices"] == cold["choices"]
    assert again["usage"]["completion_tokens"] == 40


def test_text_completions_share_beginnings_too(server):
    body = {"max_tokens": 3, "temperature": 0, "prompt_cache_key": "text"}
    first, again = (server.complete(STORY, **body).json for _ in "ab")
    assert cached(again) == again["usage"]["prompt_tokens"] - 1
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_the_page_and_the_metrics_count_and_a_reset_empties_it(server):
    ask(server, prompt_cache_key="page")
    ask(server, prompt_cache_key="page")
    server.wait_until_free()
    page = stats(server)
    assert page["enabled"] is True
    assert 0 < page["bytes"] <= page["limits"]["max_bytes"]
    assert page["hits"] >= 1
    assert server.metric("mlxcel_prompt_cache_hits_total") == page["hits"]
    assert server.ask("POST", "/v1/cache/reset").status == 200
    server.wait_for(lambda: stats(server)["bytes"] == 0)
    assert cached(ask(server, prompt_cache_key="page")) == 0


@pytest.mark.parametrize("resets", [False, True])
def test_a_freed_model_s_cache_takes_no_memory_and_its_files_can_be_dropped(
    start_server, tmp_path, resets
):
    folder = tmp_path / "kv"
    server = start_server("--idle-unload", "0.005", "--prompt-cache-dir", str(folder))
    ask(server)
    server.wait_for(lambda: server.ask("GET", "/").json["status"] == "asleep")
    assert any(folder.glob("*.kvrun"))
    assert (stats(server)["bytes"], stats(server)["entries"]) == (0, 0)
    assert server.metric("mlxcel_cache_pool_positions") == 0
    if resets:
        assert server.ask("POST", "/v1/cache/reset").status == 200
    assert (cached(ask(server)) == 0) == resets


def test_it_can_be_turned_off(start_server):
    server = start_server("--no-prompt-cache")
    assert [cached(ask(server)) for _ in "ab"] == [0, 0]
    assert stats(server) == {"enabled": False}


def test_small_bounds_are_kept(start_server):
    server = start_server("--prompt-cache-bytes", "100000", "--prompt-cache-min-tokens", "1")
    for i in range(9):
        ask(server, f"{i} {STORY}")
        assert stats(server)["bytes"] <= 100000
    assert stats(server)["evicted_bytes"] > 0


def test_a_killed_server_s_prompts_are_known_to_the_next(start_server, tmp_path):
    folder = tmp_path / "kv"
    server = start_server("--prompt-cache-dir", str(folder))
    first = ask(server)
    server.wait_for(lambda: any(folder.glob("*.kvrun")))
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    (folder / "foreign.kvrun").write_bytes(b"not ours")
    again = start_server("--prompt-cache-dir", str(folder))
    warm = ask(again)
    assert cached(warm) == warm["usage"]["prompt_tokens"] - 1
    assert warm["choices"] == first["choices"]
    again.wait_for(lambda: stats(again)["disk_tokens"] == cached(warm))  # counted now and then
    assert any(f"1 files in {folder} are not the prompt cache's" in one for one in again.notes)
    assert again.stop() == 0


def test_files_that_were_damaged_cost_a_prefill_and_a_line(start_server, tmp_path):
    folder = tmp_path / "kv"
    server = start_server("--prompt-cache-dir", str(folder))
    first = ask(server)
    server.wait_for(lambda: any(folder.glob("*.kvrun")))
    assert server.stop() == 0
    for run in folder.glob("*.kvrun"):
        run.write_bytes(run.read_bytes()[:-1] + b"?")
    again = start_server("--prompt-cache-dir", str(folder))
    cold = ask(again)
    assert cached(cold) == 0
    assert cold["choices"] == first["choices"]
    (told,) = [note for note in again.notes if "prompt cache file" in note]
    assert "is ignored" in told
    assert "its checksum is another" in told
