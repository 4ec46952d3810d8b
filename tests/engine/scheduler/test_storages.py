"""Whatever keeps the KV, answers are those of solo runs, in company and after a preemption."""

from pathlib import Path

import pytest

from engine.engine import Engine
from engine.params import SequenceParams
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.rigs import byte_tokenizer, loaded
from tests.engine.scheduler.scheduler_rigs import Served, alone, mixed_requests
from tests.engine.transfer_rigs import KINDS, engine_of, model_of

SOLO = "one row at a time"


@pytest.fixture(params=[*KINDS, SOLO])
def engine(request, tmp_path: Path) -> Engine:
    kind = request.param
    # A family whose batched forward is refused; the model is the dense one.
    tokenizer = byte_tokenizer(tmp_path)
    if kind != SOLO:
        return engine_of(kind, tokenizer=tokenizer)
    made = Engine(loaded(model_of("dense"), "afm7", tokenizer=tokenizer))
    assert made.choice.kind == SOLO
    return made


def requests() -> list[SequenceParams]:
    """Prompts shorter and longer than a window of 16, read in chunks of 8."""
    return [
        SequenceParams((*range(5 * i), *one.prompt_ids), one.sampling, max_tokens=12)
        for i, one in enumerate(mixed_requests(6))
    ]


def test_company_does_not_change_an_answer(engine):
    solo = [alone(engine, one)[0] for one in requests()]
    served = Served(engine, parallel=3)
    told = [served.submit(f"r{i}", one) for i, one in enumerate(requests())]
    served.run()
    assert [one.text for one in told] == solo


def test_a_preemption_does_not_change_an_answer(engine):
    solo = [alone(engine, one)[0] for one in requests()]
    limits = Limits(parallel=2, preemption=PreemptionPolicy.LONGEST_FIRST)
    served = Served(engine, settings=SchedulerSettings(limits))
    told = []
    for i, one in enumerate(requests()):
        told.append(served.submit(f"r{i}", one, priority=Priority(2 - i % 3)))
        for _ in range(4):
            served.tick()
    served.run()
    assert [one.text for one in told] == solo
    assert served.scheduler.stats().counters.preemptions > 0
