import mlx.core as mx
import pytest

from engine import guard
from engine.errors import EvalFailed
from engine.guard import FAILURES_ALLOWED, Health


class Broken:
    """An array whose computation fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def tolist(self) -> None:
        raise self.error


def failing(error: Exception):
    def evaluate(*arrays: object) -> None:
        raise error

    return evaluate


@pytest.mark.parametrize("kind", guard.BACKEND_ERRORS, ids=lambda kind: kind.__name__)
def test_whatever_the_backend_throws_in_a_read_becomes_eval_failed(kind: type[Exception]):
    with pytest.raises(EvalFailed, match=r"inference backend error: .*lost the device") as failed:
        guard.read(Broken(kind("lost the device")))
    assert isinstance(failed.value.__cause__, kind)


@pytest.mark.parametrize("kind", guard.BACKEND_ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("door", "call"), [(guard.evaluate, "eval"), (guard.dispatch, "async_eval")]
)
def test_whatever_the_backend_throws_in_an_evaluation_becomes_eval_failed(
    kind: type[Exception], door, call: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mx, call, failing(kind("lost the device")))
    with pytest.raises(EvalFailed, match="lost the device"):
        door([mx.zeros(1)])


def test_a_bug_of_ours_is_not_taken_for_a_fault_of_the_backend():
    with pytest.raises(AssertionError):
        guard.read(Broken(AssertionError("ours")))


def test_reads_give_plain_values():
    assert guard.read(mx.array([[1.5, 2.0]])) == [[1.5, 2.0]]
    assert guard.read(mx.array([3, 4])) == [3, 4]


def test_too_many_failures_in_a_row_are_the_end():
    health = Health()
    for _ in range(FAILURES_ALLOWED - 1):
        health.failed()
    assert health.ok
    health.failed()
    assert not health.ok


def test_any_success_starts_the_count_again():
    health = Health()
    for _ in range(FAILURES_ALLOWED - 1):
        health.failed()
    health.succeeded()
    health.failed()
    assert health.failures == 1
    assert health.ok
