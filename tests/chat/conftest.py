"""Chats on a clock that stands still, with a model that answers by a script."""

from pathlib import Path

import pytest

from mlxcel_cli.answers import ModelReport
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.settings import ChatSettings
from mlxcel_cli.chat.store import ChatStore


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    return ChatStore(tmp_path / "data" / "chats.sqlite3", clock=clock)


@pytest.fixture
def session(store, clock):
    session = ChatSession(store, ChatSettings(), clock=clock)
    session.model = ModelReport("tiny", Path("tiny"), 0.5, has_template=True, context_tokens=100)
    return session
