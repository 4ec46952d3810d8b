"""``--no-batch`` is the same server with one slot: the suites of both OpenAI routes hold there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve import test_chat_completions, test_text_completions
from tests.serve.conftest import Served, Starter, environ_of


@pytest.fixture(scope="module")
def server(tiny_model: Path, serve_home: Path) -> Iterator[Served]:
    """The server that those tests ask, with one slot."""
    starter = Starter(environ_of(serve_home), tiny_model)
    try:
        yield starter("--alias", "pet", "--no-batch", "--parallel", "4")
    finally:
        starter.end()


def test_there_is_one_slot(server):
    assert server.metric("mlxcel_slots_total") == 1


NOT_HERE = {
    "test_more_answers_at_once_than_ever_fit_are_refused_for_good",  # its figure is of four slots
    "test_another_model_is_looked_for_on_no_network",
    "test_a_base_model_completes_texts_and_refuses_chats_by_name",
}
"""The others start servers themselves."""

for suite in (test_chat_completions, test_text_completions):
    for name, one in vars(suite).items():
        if name.startswith("test_") and name not in NOT_HERE:
            globals()[name] = one
