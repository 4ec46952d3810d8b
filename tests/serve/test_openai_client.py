"""The public ``openai`` client as the judge."""

import asyncio
import json

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_whole_and_streamed_answers_agree(client):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "seed": 2}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24


def test_the_streaming_helper_gathers_an_answer_with_its_usage(client):
    with client.chat.completions.stream(
        model="default", messages=MESSAGES, logit_bias={"65": 100}, stop="AAA",
        stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "chunk" in kinds
    assert final.choices[0].message.content == ""
    assert final.usage.completion_tokens == 3


def test_log_probabilities_are_typed(client):
    done = client.chat.completions.create(
        model="pet", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
    )
    places = done.choices[0].logprobs.content
    assert [len(place.top_logprobs) for place in places] == [2, 2, 2]


def test_legacy_completions_and_models(client):
    done = client.completions.create(model="tiny", prompt="Hello", max_tokens=3, logprobs=1)
    assert done.object == "text_completion"
    assert [model.id for model in client.models.list()] == ["pet"]
    assert client.models.retrieve("tiny").id == "pet"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError),
    ],
    ids=str,
)
def test_errors_have_their_classes_and_bodies(client, fields, kind):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1} | fields
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param == next(iter(fields))
    assert caught.value.request_id


def test_many_asynchronous_streams_are_each_their_lone_answer(server):
    async def one(client, seed):
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=20, seed=seed, temperature=1, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def scene():
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            together = await asyncio.gather(*(one(client, seed) for seed in range(8)))
            return together, [await one(client, seed) for seed in range(8)]

    together, alone = asyncio.run(scene())
    assert together == alone
    assert len(set(together)) == 8


def test_a_failure_in_mid_stream_is_raised_by_the_client(start_server):
    server = start_server(faults={"fail_row": "Hello"})
    # A first token without text would fail before the stream has begun, with a 500.
    (letter,) = json.loads(server.ask("POST", "/tokenize", {"content": "a"}).body)["tokens"]
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, max_tokens=20,
            temperature=0, logit_bias={str(letter): 100},
        )  # fmt: skip
        with pytest.raises(openai.APIError, match="a fault in one row"):
            list(stream)
