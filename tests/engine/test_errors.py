import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import errors
from engine.errors import (
    ContextOverflow,
    EngineError,
    EvalFailed,
    InvalidParams,
    MemoryShort,
    ModelFileError,
    ModelNotFound,
    RowError,
)


def family(kind: type[EngineError]) -> Iterator[type[EngineError]]:
    for child in kind.__subclasses__():
        yield child
        yield from family(child)


def test_every_error_of_the_module_is_in_its_tree_of_names():
    kinds = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and name != "Path"
    }
    tree = {kind.__name__ for kind in family(EngineError) if kind.__module__ == errors.__name__}
    assert kinds == tree | {"EngineError"}
    assert [name for name in tree if f"── {name} " not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidParams("top_p", "must be from 0 to 1"), "top_p: must be from 0 to 1"),
        (ContextOverflow(90, 64), "the prompt has 90 tokens; the context holds 64"),
        (ModelNotFound("x", "try models pull"), "no model named 'x'; try models pull"),
        (ModelFileError(Path("a/b"), "no tensor t"), "a/b: no tensor t"),
        (MemoryShort(3 * 2**30, 2**30, "close programs"), "needs about 3.0 GiB; 1.0 GiB are"),
        (EvalFailed("out of memory"), "inference backend error: out of memory"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages_say_what_is_wrong(error: EngineError, said: str):
    assert said in str(error)


def test_faults_of_one_row_are_row_errors():
    assert issubclass(EvalFailed, RowError)
    assert not issubclass(InvalidParams, RowError)
