"""The real starter model behind a server that drafts, against one that does not."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.conftest import Served, Starter, environ_of
from tests.serve.near_ties import Spoken, assert_text_same, spoken

pytestmark = [pytest.mark.starter, pytest.mark.slow, pytest.mark.timeout(300)]

TOKENS = 40
POEM = "The fox went out on a chilly night and prayed for the moon to give him light."
COPY = [f"Repeat this text word for word: {POEM}", f"Write this line three times: {POEM}"]
PLAIN = ["Why is the sky blue?", "Write an email to a friend about a birthday."]
PROMPTS = [COPY[0], PLAIN[0], COPY[1], PLAIN[1]]


@pytest.fixture(scope="module")
def servers(starter_folder: Path) -> Iterator[dict[str, Served]]:
    starter = Starter(
        environ_of(starter_folder.parent.parent) | {"MLXCEL_BLAS": ""}, starter_folder
    )
    drafts = ("--draft-kind", "prompt-lookup", "--prompt-lookup-policy", "fixed",
              "--prompt-lookup-max-batch", "4")  # fmt: skip
    try:
        yield {
            "off": starter("--no-prompt-cache"),
            "on": starter("--no-prompt-cache", *drafts),
        }
    finally:
        starter.end()


def ask(server: Served, prompt: str, **fields) -> dict:
    messages = [{"role": "user", "content": prompt}]
    asked = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **fields}
    return server.chat(messages, **asked).json


@pytest.fixture(scope="module")
def alone(servers) -> dict[str, Spoken]:
    replies = (ask(servers["off"], prompt, logprobs=True, top_logprobs=2) for prompt in PROMPTS)
    return {
        prompt: spoken(reply["choices"][0]) for prompt, reply in zip(PROMPTS, replies, strict=True)
    }


@pytest.mark.parametrize("clients", [1, 2, 4])
@pytest.mark.parametrize("flag", ["off", "on"])
def test_replies_are_the_lone_ones_with_drafts_and_without(servers, alone, flag, clients):
    with ThreadPoolExecutor(clients) as pool:
        replies = list(pool.map(lambda prompt: ask(servers[flag], prompt), PROMPTS))
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        assert_text_same(reply["choices"][0]["message"]["content"], alone[prompt])
        if flag == "off":
            assert "draft_n" not in reply["timings"]
        elif prompt in COPY:
            assert reply["timings"]["draft_n_accepted"] > 0
