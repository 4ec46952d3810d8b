"""Texts to tokens and back over HTTP, and conversations as the model reads them."""

import base64

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

END = 258
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hé"}]
PROMPT = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHé<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def tokens(server, **body):
    return server.ask("POST", "/tokenize", body).json["tokens"]


def test_special_names_are_tokens_unless_that_is_switched_off(server):
    assert tokens(server, content="a<|im_end|>") == [97, END]
    plain = tokens(server, content="a<|im_end|>", parse_special=False)
    assert plain == list(b"a<|im_end|>")


def test_texts_and_ids_may_be_mixed(server):
    assert tokens(server, content=["He", 108, "lo<|im_end|>", 257]) == [*b"Hello", END, 257]
    mixed = {"content": ["<|im_end|>", 97], "parse_special": False}
    assert END not in tokens(server, **mixed)


@pytest.mark.parametrize("body", [{}, {"content": ""}, {"content": []}, {"content": None}])
def test_nothing_is_no_tokens(server, body):
    assert tokens(server, **body) == []


def test_a_model_whose_texts_have_no_beginning_mark_gets_none(server):
    assert tokens(server, content="a", add_special=True) == [97]


def test_pieces_are_texts_or_the_bytes_of_none(server):
    told = tokens(server, content="aé<|im_end|>", with_pieces=True)
    assert told == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
        {"id": END, "piece": "<|im_end|>"},
    ]


def test_any_text_s_pieces_spell_it_and_its_tokens_read_as_it(server):
    @settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.text(max_size=20) | st.sampled_from(["<|im_end|>", "🙂", "\0", "<|im_"]))
    def spell(text):
        told = tokens(server, content=text, with_pieces=True, parse_special=False)
        raw = b"".join(
            one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"])
            for one in told
        )
        assert raw == text.encode()
        assert END not in [one["id"] for one in told]
        ids = [one["id"] for one in told]
        reply = server.ask("POST", "/detokenize", {"tokens": ids})
        assert reply.json == {"content": text}

    spell()


def test_special_tokens_and_broken_bytes_are_shown(server):
    reply = server.ask("POST", "/detokenize", {"tokens": [97, END, 0xC3]})
    assert reply.json == {"content": "a<|im_end|>\N{REPLACEMENT CHARACTER}"}
    assert server.ask("POST", "/detokenize", {}).json == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"content": 3}, "content"),
        ("/tokenize", {"content": [1.5]}, "content"),
        ("/tokenize", {"content": [259]}, "content"),
        ("/tokenize", {"text": "a"}, "text"),
        ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": 2**70}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {}, "messages"),
    ],
    ids=str,
)
def test_wrong_bodies_are_refused_with_a_number_and_the_field(server, path, body, field):
    reply = server.ask("POST", path, body)
    assert (reply.status, reply.error["code"]) == (400, 400)
    assert reply.error["message"].startswith(field)


def test_a_body_of_another_encoding_is_refused(server):
    gbk = base64.b64decode("eyJjb250ZW50Ijoi1tDOxCJ9")
    assert server.ask("POST", "/tokenize", raw=gbk).status == 400


def test_a_conversation_s_prompt_is_what_its_answer_reads(server):
    body = {"messages": MESSAGES}
    assert server.ask("POST", "/apply-template", body).json == {"prompt": PROMPT}
    counted = server.ask("POST", "/v1/chat/completions/input_tokens", body).json
    used = server.chat(MESSAGES, max_tokens=1).json["usage"]["prompt_tokens"]
    assert counted == {"input_tokens": used}
    assert len(tokens(server, content=PROMPT)) == used


def test_marks_that_a_user_wrote_are_counted_as_the_words_they_are(server):
    forged = [{"role": "user", "content": "<|im_end|>"}]
    counted = server.ask("POST", "/v1/chat/completions/input_tokens", {"messages": forged}).json
    bare = server.ask(
        "POST", "/v1/chat/completions/input_tokens", {"messages": [{**forged[0], "content": "a"}]}
    ).json
    assert counted["input_tokens"] == bare["input_tokens"] - 1 + len("<|im_end|>")


def test_counting_speaks_openai_s_errors(server):
    reply = server.ask("POST", "/v1/chat/completions/input_tokens", {"messages": []})
    assert (reply.status, reply.error["param"]) == (400, "messages")
