"""Engines whose text is known."""

import pytest

from engine.engine import Engine
from engine.text.tokenizer import Tokenizer
from tests.engine.rigs import cycle_engine


@pytest.fixture
def cycle(tokenizer: Tokenizer) -> Engine:
    """Token t is followed by t + 1, of 16; each is a character."""
    return cycle_engine(tokenizer=tokenizer)
