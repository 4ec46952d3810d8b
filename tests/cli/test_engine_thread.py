"""The engine thread: order, bursts, cancelling, errors and its end."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from engine.errors import EngineClosed
from mlxcel_cli.engine_thread import ENGINE_THREAD_NAME, EngineThread


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    with EngineThread() as thread:
        yield thread


def hold(started: threading.Event, release: threading.Event) -> None:
    started.set()
    release.wait(30)


def test_jobs_run_one_after_the_other_on_one_thread_that_is_not_the_caller_s(thread):
    names = [thread.call(lambda: threading.current_thread().name) for _ in range(3)]
    assert names == [ENGINE_THREAD_NAME] * 3


def test_a_call_gives_what_the_job_returns_and_raises_what_it_raises(thread):
    assert thread.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    assert thread.call(lambda: 4) == 4


def test_a_stream_gives_items_and_emitted_ones_in_order(thread):
    def job(emit):
        emit("a")
        yield "b"
        emit("c")
        yield "d"

    assert list(thread.stream(job)) == ["a", "b", "c", "d"]


def test_an_error_comes_after_the_items_before_it(thread):
    def job(_):
        yield 1
        raise ZeroDivisionError

    items = iter(thread.stream(job))
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_items_that_are_there_come_in_one_burst(thread):
    stream = thread.stream(lambda _: iter(range(100)))
    thread.call(lambda: None)
    assert [len(burst) for burst in stream.bursts()] == [100]


def test_closing_a_stream_ends_the_job_between_two_items_and_closes_its_iterator_there(thread):
    closed_on = []
    produced = []

    def job(_):
        try:
            while True:
                produced.append(1)
                yield 1
                time.sleep(0.001)
        finally:
            closed_on.append(threading.current_thread().name)

    with thread.stream(job) as stream:
        next(iter(stream))
    thread.call(lambda: None)
    assert closed_on == [ENGINE_THREAD_NAME]
    count = len(produced)
    thread.call(lambda: time.sleep(0.01))
    assert len(produced) == count


def test_closing_a_stream_ends_a_job_at_its_next_report(thread):
    started, release, after = threading.Event(), threading.Event(), []

    def job(emit):
        hold(started, release)
        emit("progress")
        after.append("continued")
        yield "result"

    stream = thread.stream(job)
    started.wait(30)
    stream.close()
    release.set()
    thread.call(lambda: None)
    assert after == []


def test_a_cancelled_job_that_waits_never_starts_its_work(thread):
    started, release, ran = threading.Event(), threading.Event(), []

    def first(_):
        hold(started, release)
        yield None

    def second(_):
        ran.append("first item")
        yield 1
        ran.append("second item")
        yield 2

    thread.stream(first)
    started.wait(30)
    thread.stream(second).close()
    release.set()
    thread.call(lambda: None)
    assert ran == []


def test_jobs_that_wait_when_the_thread_ends_get_engine_closed():
    thread = EngineThread()
    started, release = threading.Event(), threading.Event()

    def first(_):
        hold(started, release)
        yield "done"

    running = thread.stream(first)
    waiting = thread.stream(lambda _: iter((1,)))
    started.wait(30)
    thread.close()
    release.set()
    assert list(running) == ["done"]
    with pytest.raises(EngineClosed):
        list(waiting)


def test_a_closed_thread_takes_no_job():
    thread = EngineThread()
    thread.close()
    thread.close()
    assert thread.join(30)
    with pytest.raises(EngineClosed):
        thread.call(lambda: 1)


def test_system_exit_in_a_job_is_the_caller_s_and_the_thread_lives(thread):
    with pytest.raises(SystemExit):
        thread.call(lambda: sys.exit(3))
    assert thread.call(lambda: 1) == 1


def test_leaving_after_an_error_does_not_wait_for_a_running_job():
    started, release = threading.Event(), threading.Event()

    def job(_):
        hold(started, release)
        yield None

    with suppress(ZeroDivisionError), EngineThread() as thread:
        thread.stream(job)
        started.wait(30)
        raise ZeroDivisionError
    assert not thread.join(0)
    release.set()
    assert thread.join(30)


EXIT_CODE = """
from mlxcel_cli.engine_thread import EngineThread

def work():
    import mlx.core as mx
    x = mx.random.normal((64, 64))
    mx.eval(mx.random.categorical(x @ x))
    return 1

with EngineThread() as thread:
    thread.call(work)
"""


@pytest.mark.slow
def test_a_process_whose_engine_thread_used_mlx_ends_cleanly_every_time():
    codes = [
        subprocess.run([sys.executable, "-c", EXIT_CODE], check=False, timeout=60).returncode
        for _ in range(20)
    ]
    assert codes == [0] * 20


def test_a_panic_of_a_library_arrives_as_an_exception():
    class Panic(BaseException):
        pass

    def job():
        raise Panic("index out of bounds")

    with EngineThread() as thread, pytest.raises(RuntimeError, match="Panic: index") as raised:
        thread.call(job)
    assert isinstance(raised.value.__cause__, Panic)
