"""Values become JSON and come back equal; what does not fit its type is refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.plain import PLAIN_ERRORS, from_plain, to_plain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: float
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Outer:
    ids: tuple[int, ...]
    chosen: frozenset[int]
    biases: Mapping[int, float]
    inner: Inner | None = None
    text: str = ""
    flag: bool = False


floats = st.floats(allow_nan=False)
outers = st.builds(
    Outer,
    ids=st.lists(st.integers()).map(tuple),
    chosen=st.frozensets(st.integers()),
    biases=st.dictionaries(st.integers(), floats),
    inner=st.none() | st.builds(Inner, floats, st.sampled_from(Colour)),
    text=st.text(),
    flag=st.booleans(),
)


@given(outers)
def test_a_value_comes_back_equal_through_json(value: Outer):
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value)))) == value


def test_a_whole_number_is_a_fair_float():
    assert from_plain(Inner, {"number": 2, "colour": "blue"}) == Inner(2.0, Colour.BLUE)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Inner, {"number": 1.0}),
        (Inner, {"number": 1.0, "colour": "red", "more": 1}),
        (Inner, {"number": "1", "colour": "red"}),
        (Inner, {"number": True, "colour": "red"}),
        (Inner, {"number": 1.0, "colour": "green"}),
        (Inner, [1.0, "red"]),
        (int, 1.0),
        (int, True),
        (bool, 1),
        (str, None),
        (tuple[int, ...], "12"),
        (tuple[int, ...], ["1"]),
        (Mapping[int, float], {"1": 2.0}),
        (Mapping[int, float], [[1, 2.0, 3.0]]),
        (int | None, "x"),
    ],
)
def test_what_has_another_shape_is_refused(kind: Any, document: Any):
    with pytest.raises(PLAIN_ERRORS):
        from_plain(kind, document)
