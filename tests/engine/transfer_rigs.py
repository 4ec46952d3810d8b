"""Engines of every storage kind on tiny models, and rows that are taken from one to another."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from engine.engine import Engine
from engine.outcome import SeqId
from engine.params import SamplingParams, SequenceParams
from tests.engine.inside import row_of
from tests.engine.rigs import loaded, prefill, tiny_model

WINDOW = 16

KINDS = {
    "dense": ("llama", 512),
    "window as a mask": ("gemma3", 4 * WINDOW),
    "ring": ("gemma3", 512),
    "recurrent": ("hybrid", 512),
}
"""A family and a context that give each kind of storage."""

GREEDY = SamplingParams()
SEEDED = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    seed=1234,
    repetition_penalty=1.3,
    repetition_context_size=20,
    frequency_penalty=0.3,
    presence_penalty=0.2,
)
MIROSTAT = SamplingParams(temperature=1.0, mirostat=2, seed=7)


@cache
def model_of(kind: str) -> Any:
    """One model per kind, made once."""
    return tiny_model(KINDS[kind][0])


def engine_of(kind: str, **kw: Any) -> Engine:
    """A fresh engine on the kind's model."""
    family, context = KINDS[kind]
    kw = {"context": context, **kw}
    engine = Engine(loaded(model_of(kind), family, **kw))
    assert engine.choice.kind == kind
    return engine


def request(
    tokens: int = 30, *, shift: int = 3, written: int = 10, sampling: SamplingParams = GREEDY
) -> SequenceParams:
    """A prompt of ``tokens`` tokens and the number to write."""
    ids = tuple((7 * i + shift) % 250 for i in range(tokens))
    return SequenceParams(ids, sampling=sampling, max_tokens=written)


def begun(engine: Engine, params: SequenceParams) -> SeqId:
    """A row whose prompt was read."""
    seq = engine.open(params)
    prefill(engine, seq)
    return seq


def rest_of(engine: Engine, seq: SeqId) -> list[int]:
    """Step a row to its end and close it; its whole answer."""
    return list(steps_of(engine, seq))[-1]


def steps_of(engine: Engine, seq: SeqId) -> Iterator[list[int]]:
    """Its answer so far, after each step; closes the row at its end."""
    prompt_tokens = len(row_of(engine, seq).params.prompt_ids)
    while True:
        (outcome,) = engine.step([seq])
        assert outcome.error is None
        answer = list(engine.ids(seq)[prompt_tokens:])
        if outcome.is_final:
            engine.close(seq)
            yield answer
            return
        yield answer
