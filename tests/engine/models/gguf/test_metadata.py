import numpy as np
import pytest

from engine.errors import ModelFileError
from engine.models.gguf.metadata import GgufMetadata

METADATA = GgufMetadata(
    "m.gguf",
    {
        "text": "x",
        "count": 3,
        "minus": -3,
        "ratio": 0.5,
        "nan": float("nan"),
        "flag": True,
        "texts": ("a",),
        "numbers": np.array([1]),
    },
)


def test_values_come_back_by_key_and_type():
    assert METADATA.text("text") == "x"
    assert METADATA.integer("count") == 3
    assert METADATA.number("ratio") == 0.5
    assert METADATA.number("count") == 3.0
    assert METADATA.flag("flag", default=False) is True
    assert METADATA.texts("texts") == ("a",)
    assert METADATA.numbers("numbers").tolist() == [1]
    assert "text" in METADATA
    assert next(iter(METADATA)) == "text"
    assert [key for key in METADATA if METADATA.is_array(key)] == ["texts", "numbers"]


def test_a_missing_key_takes_the_default():
    assert METADATA.text("none", "y") == "y"
    assert METADATA.integer("none", 4) == 4
    assert METADATA.number("none", 1.5) == 1.5
    assert METADATA.flag("none", default=True) is True


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: METADATA.text("none"), "'none' is missing"),
        (lambda: METADATA.texts("none"), "'none' is missing"),
        (lambda: METADATA.text("count"), "'count' is not a string"),
        (lambda: METADATA.integer("text"), "'text' is not a whole number"),
        (lambda: METADATA.integer("minus"), "'minus' is not a whole number"),
        (lambda: METADATA.integer("flag"), "'flag' is not a whole number"),
        (lambda: METADATA.number("nan"), "'nan' is not a finite number"),
        (lambda: METADATA.number("flag"), "'flag' is not a finite number"),
        (lambda: METADATA.flag("count", default=True), "'count' is not a boolean"),
        (lambda: METADATA.texts("numbers"), "'numbers' is not an array of strings"),
        (lambda: METADATA.numbers("texts"), "'texts' is not an array of numbers"),
    ],
)
def test_a_missing_or_mistyped_key_is_an_error_that_names_it(ask, message):
    with pytest.raises(ModelFileError, match=message):
        ask()
