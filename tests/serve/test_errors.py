"""The table of statuses."""

from http import HTTPStatus

import pytest

from engine.errors import (
    ContextOverflow,
    EngineClosed,
    EngineError,
    EvalFailed,
    InvalidParams,
    ModelNotFound,
    QueueFull,
)
from mlxcel_cli.serve.errors import api_error, loading_error

BUGS_OF_OURS = {"UnknownSequence", "DrafterOutOfStep"}
"""No client can cause these."""


def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("kind", list(kinds(EngineError)))
def test_every_engine_error_has_its_row(kind):
    told = api_error(kind("a", "b") if kind is InvalidParams else kind.__new__(kind))
    assert (told.code == "internal_error") == (kind.__name__ in BUGS_OF_OURS)


@pytest.mark.parametrize(
    ("error", "status", "waits"),
    [
        (InvalidParams("n", "is wrong"), 400, False),
        (ContextOverflow(9, 8), 400, False),
        (ModelNotFound("a", "b"), 404, False),
        (QueueFull(3, 3), 503, True),
        (EngineClosed("gone"), 503, True),
        (EvalFailed("lost"), 500, False),
        (ZeroDivisionError("a bug"), 500, False),
        (loading_error(), 503, True),
    ],
    ids=str,
)
def test_statuses_and_who_may_try_again(error, status, waits):
    told = api_error(error)
    assert told.status == HTTPStatus(status)
    assert ("Retry-After" in told.headers) == waits


def test_a_bug_shows_nothing_of_itself():
    assert "secret" not in api_error(ValueError("secret")).message
