"""The real starter model behind the server: planted facts, emoji, many at once."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.conftest import Served, Starter, environ_of

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


def ask(server: Served, word: str) -> str:
    reply = server.chat(plant(word), max_tokens=8, temperature=0)
    return reply.json["choices"][0]["message"]["content"]


def test_sixteen_at_once_each_get_their_own_word(starter_server):
    alone = {word: ask(starter_server, word) for word in WORDS}
    with ThreadPoolExecutor(16) as pool:
        together = dict(
            zip(WORDS, pool.map(lambda word: ask(starter_server, word), WORDS), strict=True)
        )
    for word in WORDS:
        named = {one for one in WORDS if re.search(one, together[word], re.IGNORECASE)}
        assert named <= {word}, together[word]
        if together[word] != alone[word]:
            # A near-tie may fall otherwise in a wider batch; the word may not.
            assert named == {one for one in WORDS if re.search(one, alone[word], re.IGNORECASE)}
    assert sum(word in text.lower() for word, text in together.items()) >= 12


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
    assert first == second != ""
