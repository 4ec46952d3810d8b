"""Engines whose text is known."""

from pathlib import Path

import pytest

from engine.engine import Engine
from engine.text.tokenizer import Tokenizer
from tests.engine.rigs import byte_tokenizer, cycle_engine


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """One token a byte."""
    return byte_tokenizer(tmp_path)


@pytest.fixture
def cycle(tokenizer: Tokenizer) -> Engine:
    """Token t is followed by t + 1, of 16; each is a character."""
    return cycle_engine(tokenizer=tokenizer)
