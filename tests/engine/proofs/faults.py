"""Three rows in one batch of which one meets a fault, and the same schedule without it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from engine.engine import Engine
from engine.errors import RowError
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome
from engine.params import SamplingParams, SequenceParams
from engine.prefill import plan_prefill
from tests.engine.inside import rows_of, storage_of
from tests.engine.rigs import Watched, loaded, tiny_model

ROWS = range(3)
KINDS = ("llama", "gemma3", "hybrid")

PROMPTS = ((5, 6, 7, 8, 9, 10, 11, 12, 13, 14), (21, 22, 23), (31, 32, 33, 34, 35, 36, 37))
SAMPLING = (
    SamplingParams(temperature=0, seed=1),
    SamplingParams(temperature=1.0, top_p=0.9, seed=2),
    SamplingParams(temperature=0.8, repetition_penalty=1.2, seed=3),
)
STEPS = 8


def request(row: int, **changes: Any) -> SequenceParams:
    """What row 0, 1 or 2 asks for."""
    values: dict[str, Any] = {"sampling": SAMPLING[row], "max_tokens": STEPS, **changes}
    return SequenceParams(PROMPTS[row], **values)


@dataclass
class Told:
    """What one row was told."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishCause | None = None
    errors: list[RowError] = field(default_factory=list)

    def take(self, outcome: StepOutcome) -> bool:
        assert self.finish is None, "told more after the end"
        assert not self.errors, "told more after an error"
        if outcome.token is not None:
            self.tokens.append(outcome.token)
        if outcome.error is not None:
            self.errors.append(outcome.error)
        self.finish = outcome.finish
        return outcome.is_final


class Trio:
    """Opens, fills and steps three rows, pipelined; a test puts its fault between.

    Args:
        engine: on any tiny model.
        requests: of the three rows.
        hooks: of each row.
        text: of each row.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        requests: dict[int, SequenceParams] | None = None,
        hooks: dict[int, Any] | None = None,
        text: dict[int, Any] | None = None,
    ) -> None:
        self.engine = engine
        self.told = [Told() for _ in ROWS]
        self.seqs: list[SeqId] = []
        self.before: Callable[[str, int], None] = lambda call, number: None
        """Called before each engine call with its name and how many of them there were."""
        self.calls: dict[str, int] = {}
        self._requests = {row: request(row) for row in ROWS} | (requests or {})
        self._hooks, self._text = hooks or {}, text or {}

    def note(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        self.before(call, self.calls[call])

    def run(self) -> list[Told]:
        for row in ROWS:
            self.note("open")
            params = self._requests[row]
            self.seqs.append(
                self.engine.open(params, hooks=self._hooks.get(row), text=self._text.get(row))
            )
        live = [seq for row, seq in enumerate(self.seqs) if self.fill(row)]
        ticket = None
        while live:
            if ticket is None:
                self.note("submit")
                ticket = self.engine.submit(live)
            later = None
            if ahead := [seq for seq in live if self.engine.wants_step(seq)]:
                self.note("submit")
                later = self.engine.submit(ahead)
            self.note("collect")
            for outcome in self.engine.collect(ticket):
                if self.told[self.seqs.index(outcome.seq)].take(outcome):
                    live.remove(outcome.seq)
            ticket = later
        for seq in self.seqs:
            self.note("close")
            self.engine.close(seq)
        return self.told

    def fill(self, row: int) -> bool:
        """All chunks of a row's prompt; whether it goes on."""
        tokens = len(self._requests[row].prompt_ids)
        for chunk in plan_prefill(prompt_tokens=tokens, chunk_tokens=4):
            self.note(f"prefill {row}")
            first = self.engine.prefill(self.seqs[row], chunk).first
            if first is not None and self.told[row].take(first):
                return False
        return True


@cache
def model_of(family: str) -> Any:
    """One model for all tests: building it costs more than a schedule."""
    return tiny_model(family)


def engine_of(family: str, *, context: int = 512) -> Engine:
    """A new engine."""
    return Engine(loaded(model_of(family), family, context=context))


def watched(family: str) -> tuple[Engine, Watched]:
    """A new engine and what stands before its model."""
    engine = engine_of(family)
    return engine, Watched(engine)


@cache
def calm(family: str) -> list[Told]:
    """What the three rows are told without a fault."""
    return Trio(engine_of(family)).run()


def undisturbed(family: str, **changes: Any) -> list[Told]:
    """The same with other requests, hooks or texts."""
    return Trio(engine_of(family), **changes).run()


def assert_only(victim: int, told: list[Told], others: list[Told], error: type[RowError]) -> None:
    """The victim ended with its error, once; the others are what they would have been."""
    assert [type(e) for e in told[victim].errors] == [error]
    assert told[victim].finish is None
    count = len(told[victim].tokens)
    assert told[victim].tokens == others[victim].tokens[:count]
    for row in ROWS:
        if row != victim:
            assert told[row] == others[row]


def assert_usable(engine: Engine, kind: str) -> None:
    """Nothing is left, and the same slots serve the same schedule as a new engine's."""
    assert not rows_of(engine)
    assert not storage_of(engine).arrays()
    assert Trio(engine).run() == calm(kind)
    assert engine.health.ok
