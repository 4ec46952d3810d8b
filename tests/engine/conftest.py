"""What tests of the engine share."""

import pytest

from engine.text.tokenizer import Tokenizer
from tests.engine.rigs import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token a byte."""
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
