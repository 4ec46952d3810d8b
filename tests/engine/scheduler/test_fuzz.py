"""Random arrivals, cancels, holds and priorities: everyone gets the answer it would get alone."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.events import Cancelled, Done
from engine.params import SequenceParams
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import byte_tokenizer, tiny_engine
from tests.engine.scheduler.scheduler_rigs import Served, alone, mixed_requests

TOKENIZER = cache(lambda: byte_tokenizer(Path(mkdtemp())))

ENGINE = cache(lambda family: tiny_engine(family, tokenizer=TOKENIZER()))

BOUNDS = ((1, 1), (2, 9), (5, 5))
"""Room in the context behind the prompt, and ``max_tokens``: the first is met, or both at once."""


def bounded(number: int, params: SequenceParams) -> SequenceParams:
    """Every other request with bounds that are met exactly."""
    if number % 2:
        return params
    room, most = BOUNDS[number // 2 % len(BOUNDS)]
    return replace(params, context_tokens=len(params.prompt_ids) + room, max_tokens=most)


REQUESTS = [bounded(i, params) for i, params in enumerate(mixed_requests(24))]

STOPS = ("e", "\x10\x11")


@cache
def solo(family: str, number: int) -> str:
    return alone(ENGINE(family), REQUESTS[number], STOPS)[0]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 23), st.sampled_from(Priority)),
        st.tuples(st.just("tick"), st.integers(1, 6), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 23), st.none()),
        st.tuples(st.just("pause"), st.integers(0, 23), st.none()),
        st.tuples(st.just("resume"), st.integers(0, 23), st.none()),
    ),
    min_size=5,
    max_size=40,
)


def act(served: Served, action: str, number: int, priority: Priority | None) -> None:
    """Carry one action out; what makes no sense is left out."""
    id_ = str(number)
    if action == "submit" and id_ not in served.told:
        served.submit(id_, REQUESTS[number], stops=STOPS, priority=priority)
    elif action == "tick":
        for _ in range(number):
            served.tick()
    elif action in {"cancel", "pause", "resume"}:
        getattr(served.scheduler, action)(id_)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("parallel", [1, 4])
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=actions,
    policy=st.none() | st.sampled_from(PreemptionPolicy),
    chunk=st.sampled_from([0, 3, 8]),
    interval=st.integers(0, 5),
)
def test_any_company_gives_the_answers_of_solo_runs(
    family, parallel, actions, policy, chunk, interval
):
    limits = Limits(
        parallel, grant_interval=interval, short_chunks=2, short_tokens=0, preemption=policy
    )
    served = Served(ENGINE(family), chunk=chunk, settings=SchedulerSettings(limits, 100))
    cancelled = set()
    for action, number, priority in actions:
        act(served, action, number, priority)
        if action == "cancel":
            cancelled.add(str(number))
    for id_ in served.told:
        served.scheduler.resume(id_)
    served.run()
    for id_, told in served.told.items():
        text = solo(family, int(id_))
        if isinstance(told.last, Cancelled):
            assert id_ in cancelled
            assert text.startswith(told.text)
        else:
            assert isinstance(told.last, Done)
            assert told.text == text
    assert served.scheduler.stats().slots == ()
    assert ENGINE(family).choice.storage.arrays() == []


def test_the_fuzz_s_requests_differ():
    texts = {solo("llama", number) for number in range(24)}
    assert len(texts) > 12
