"""The real starter model behind the server: planted facts, emoji, many at once."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.conftest import Served, Starter, environ_of
from tests.serve.near_ties import Spoken, assert_same, spoken

pytestmark = [pytest.mark.starter, pytest.mark.slow, pytest.mark.timeout(300)]

WORDS = (
    "apple", "bridge", "candle", "dragon", "engine", "forest", "garden", "hammer",
    "island", "jacket", "kettle", "ladder", "magnet", "needle", "orange", "pencil",
)  # fmt: skip


def plant(word: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f'Repeat this word and nothing else: "{word}"'},
        {"role": "assistant", "content": f'The word is "{word}".'},
        {"role": "user", "content": "Which word was it? Answer with the word."},
    ]


@pytest.fixture(scope="module", params=["16", "4"])
def starter_server(request, starter_folder: Path) -> Iterator[Served]:
    home = starter_folder.parent.parent
    starter = Starter(environ_of(home) | {"MLXCEL_BLAS": ""}, starter_folder)
    try:
        yield starter("--parallel", request.param)
    finally:
        starter.end()


def ask(server: Served, word: str) -> Spoken:
    reply = server.chat(plant(word), max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
    return spoken(reply.json["choices"][0])


def named(answer: Spoken) -> set[str]:
    return {word for word in WORDS if re.search(word, answer.text, re.IGNORECASE)}


@pytest.mark.parametrize("clients", [2, 16])
def test_clients_at_once_each_get_their_own_word(starter_server, clients):
    """mlx-lm#965, omlx#691: answers leaked between requests, at two clients too."""
    alone = {word: ask(starter_server, word) for word in WORDS}
    with ThreadPoolExecutor(clients) as pool:
        together = dict(
            zip(WORDS, pool.map(lambda word: ask(starter_server, word), WORDS), strict=True)
        )
    for word in WORDS:
        assert named(together[word]) == named(alone[word]) <= {word}, together[word].text
        assert_same(together[word], alone[word])
    assert sum(word in text.text.lower() for word, text in together.items()) >= 12


def test_no_broken_characters_in_any_delta(starter_server):
    messages = [{"role": "user", "content": "Repeat exactly: 日本語 🙂 é 日本語 🙂"}]
    asked = {"max_tokens": 24, "temperature": 0}
    whole = starter_server.chat(messages, **asked).json["choices"][0]["message"]["content"]
    events = starter_server.chat(messages, **asked, stream=True).events
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == whole
    assert not any("\N{REPLACEMENT CHARACTER}" in delta for delta in deltas[:-2])


def test_the_same_request_twice_is_answered_in_full_twice(starter_server):
    first, second = (ask(starter_server, "kettle") for _ in range(2))
    assert first.text == second.text != ""
