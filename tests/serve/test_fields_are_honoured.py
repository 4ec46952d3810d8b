"""Fields and headers of requests come to where they have an effect; the model says what it can."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from engine.params import LoopRule
from engine.scheduler.queue import Priority
from engine.text.template import ChatTemplate
from mlxcel_cli.serve.anthropic import routes as anthropic
from mlxcel_cli.serve.bodies import parse_body
from mlxcel_cli.serve.generation import Defaults, plan_generation, priority_of
from mlxcel_cli.serve.llamacpp import routes as llamacpp
from mlxcel_cli.serve.openai import routes as openai
from mlxcel_cli.serve.openai.request import chat_of, chat_spec
from mlxcel_cli.serve.openai.routes import list_models
from mlxcel_cli.serve.openai.schema import OPENAI_FIELDS, ChatRequest
from mlxcel_cli.serve.prompts import EncodedPrompt, encode_chat
from mlxcel_cli.serve.served_model import PromptLimit
from mlxcel_cli.serve.server import SERVER
from tests.serve.conftest import HELLO

TEMPLATE = (
    "{{ enable_thinking|default('unsaid') }} {{ reasoning_effort|default('unsaid') }}"
    "{% for message in messages %} {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %} go{% endif %}"
)
TOKENIZER = SimpleNamespace(
    encode=str.encode, encode_rendered=lambda rendered: tuple(rendered.text.encode())
)
GIVEN = Defaults({})
PROMPT = EncodedPrompt((1,), "a")


def served(*, template=True, keeps_whole_kv=False):
    return SimpleNamespace(
        template=ChatTemplate(TEMPLATE) if template else None,
        tokenizer=TOKENIZER,
        thinking_marks=(),
        limit=PromptLimit(TOKENIZER, 512),
        generation={},
        context_tokens=512,
        keeps_whole_kv=keeps_whole_kv,
        facts=SimpleNamespace(
            name="tiny", template_text=TEMPLATE, vocab_size=259, family="llama",
            context_tokens=512, dtype="float32", quantization=None, weight_bytes=1,
        ),
    )  # fmt: skip


def parsed(**fields):
    return parse_body(json.dumps({"messages": HELLO} | fields).encode(), ChatRequest, OPENAI_FIELDS)


def row(priority=Priority.NORMAL, **fields):
    spec = chat_spec(parsed(**fields), priority)
    (found,) = plan_generation(spec, (PROMPT,), served(), GIVEN, "r").rows
    return found


def test_min_tokens_bounds_the_answer_from_below():
    assert row(min_tokens=4).params.min_tokens == 4


def test_stop_token_ids_are_more_end_tokens():
    assert row(stop_token_ids=[65, 66]).params.stop_ids == {65, 66}


@pytest.mark.parametrize("name", ["min_pattern", "max_pattern", "min_count"])
def test_each_loop_field_is_its_part_of_the_rule(name):
    assert row(**{f"loop_{name}": 7}).params.loop == LoopRule(**{name: 7})


# The names are written out: a table held against itself holds nothing.
@pytest.mark.parametrize(
    ("alias", "name"),
    [("repeat_last_n", "repetition_context_size"), ("repeat_penalty", "repetition_penalty")],
)
def test_llama_cpps_names_of_penalties_set_those_alone(alias, name):
    sampling = row(seed=1, **{alias: 7}).params.sampling
    assert getattr(sampling, name) == 7
    assert sampling == row(seed=1, **{name: 7}).params.sampling


@pytest.mark.parametrize("name", ["max_completion_tokens", "n_predict"])
def test_other_names_of_max_tokens_bound_the_answer(name):
    assert row(**{name: 7}).params.max_tokens == 7


# -- the template's variables


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, "unsaid unsaid "),
        ({"reasoning_effort": "low"}, "unsaid low "),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "False unsaid "),
        (
            {"chat_template_kwargs": {"reasoning_effort": "high"}, "reasoning_effort": "low"},
            "unsaid high ",
        ),
    ],
)
def test_the_template_is_given_its_variables(fields, start):
    prompt = encode_chat(chat_of(parsed(**fields)), served(keeps_whole_kv=True))
    assert prompt.text == f"{start}Hello go"
    # The cache is told where the conversation ends in this very rendering.
    assert prompt.history_tokens == len(f"{start}Hello")


# -- lanes


@pytest.mark.parametrize("lane", Priority)
def test_a_lane_is_known_by_its_name_and_is_its_rows(lane):
    assert priority_of(SimpleNamespace(headers={"X-Priority": f" {lane.name.title()} "})) is lane
    assert row(lane).priority is lane


class Planning(Exception):
    """A route came to where rows are made of a request."""


@pytest.mark.parametrize(
    ("routes", "handler", "body"),
    [
        (openai, "chat_completions", {"messages": HELLO}),
        (openai, "completions", {"prompt": [1]}),
        (anthropic, "messages", {"model": "m", "messages": HELLO, "max_tokens": 1}),
        (llamacpp, "completion", {"prompt": [1]}),
    ],
)
def test_the_header_s_lane_goes_with_every_kind_of_request(monkeypatch, routes, handler, body):
    async def read_json(_request, shape, rules):
        return parse_body(json.dumps(body).encode(), shape, rules), 1

    is_off_the_loop = False

    async def text_work(work, _nbytes):
        nonlocal is_off_the_loop
        is_off_the_loop = True
        try:
            return work()
        finally:
            is_off_the_loop = False

    def stop(spec, *_):
        assert is_off_the_loop, "a large request is planned on the event loop"
        raise Planning(spec.priority)

    monkeypatch.setattr(routes, "read_json", read_json)
    monkeypatch.setattr(routes, "plan_generation", stop)
    for name in ("encode_chat", "completion_prompts"):
        monkeypatch.setattr(routes, name, lambda *_: (PROMPT,), raising=False)
    server = SimpleNamespace(
        model_for_generation=served,
        worker=SimpleNamespace(ready_model=served),
        require_name=lambda name, _: name,
        text_work=text_work,
        defaults=GIVEN,
    )
    request = SimpleNamespace(
        app={SERVER: server}, headers={"X-Priority": "high"}, content_length=1
    )
    with pytest.raises(Planning) as caught:
        asyncio.run(getattr(routes, handler)(request))
    assert caught.value.args == (Priority.HIGH,)


# -- the list of models


@pytest.mark.parametrize(
    ("template", "capabilities"), [(True, ["completion", "chat"]), (False, ["completion"])]
)
def test_a_listed_model_says_what_it_can_and_by_whom(template, capabilities):
    model = served(template=template)
    server = SimpleNamespace(
        worker=SimpleNamespace(ready_model=lambda: model), names=lambda _: ("pet",), started=7
    )
    reply = asyncio.run(list_models(SimpleNamespace(app={SERVER: server})))
    (entry,) = json.loads(reply.body)["data"]
    assert entry["capabilities"] == capabilities
    assert (entry["owned_by"], entry["tags"]) == ("llamacpp", [])
