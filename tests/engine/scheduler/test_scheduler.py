from pathlib import Path

import pytest

from engine.finish import FinishCause
from engine.params import SamplingParams, SequenceParams
from engine.scheduler.request import Cancelled
from tests.engine.rigs import byte_tokenizer, cycle_engine, tiny_engine
from tests.engine.scheduler.scheduler_rigs import Served, alone

each_width = pytest.mark.parametrize("parallel", [1, 4])


@pytest.fixture
def tokenizer(tmp_path: Path):
    return byte_tokenizer(tmp_path)


def mixed_requests(count: int) -> list[SequenceParams]:
    """Greedy and seeded, penalised and host-bound, short and long."""
    knobs = [
        SamplingParams(),
        SamplingParams(temperature=0.9, top_p=0.9),
        SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.2),
        SamplingParams(temperature=0.7, dry_multiplier=0.8, dry_sequence_breakers=()),
        SamplingParams(logprobs=2),
        SamplingParams(temperature=1.0, mirostat=2),
    ]
    return [
        SequenceParams(
            tuple((7 * i + 3 * j) % 256 for j in range(1 + (i * 5) % 23)),
            sampling=SamplingParams(
                **{
                    name: getattr(knobs[i % len(knobs)], name)
                    for name in SamplingParams.__dataclass_fields__
                    if name != "seed"
                },
                seed=i,
            ),
            max_tokens=3 + (i * 7) % 20,
        )
        for i in range(count)
    ]


@each_width
def test_sixteen_requests_equal_their_solo_answers(tokenizer, parallel: int):
    requests = mixed_requests(16)
    solo = [alone(tiny_engine(tokenizer=tokenizer), params) for params in requests]
    served = Served(tiny_engine(tokenizer=tokenizer), parallel=parallel)
    told = [served.submit(f"r{i}", params) for i, params in enumerate(requests)]
    served.run()
    assert [one.text for one in told] == [text for text, _ in solo]
    assert [one.done.finish for one in told] == [answer.finish for _, answer in solo]
    assert [one.done.usage for one in told] == [answer.usage for _, answer in solo]


def test_a_lone_request_of_n_tokens_makes_at_least_n_minus_3_lookahead_steps(tokenizer):
    served = Served(cycle_engine(tokenizer=tokenizer), parallel=4)
    told = served.submit("a", SequenceParams((1, 2, 3), max_tokens=128))
    served.run()
    assert told.done.finish is FinishCause.LENGTH
    assert served.scheduler.stats().counters.lookahead_steps >= 125


@each_width
def test_a_cancelled_row_s_slot_is_free_before_the_next_tick(tokenizer, parallel: int):
    served = Served(cycle_engine(tokenizer=tokenizer), parallel=parallel)
    running = served.submit("a", SequenceParams((1, 2, 3), max_tokens=100))
    served.tick()
    served.tick()
    served.scheduler.cancel("a")
    assert served.scheduler.stats().slots == ()
    served.run()
    assert isinstance(running.last, Cancelled)
