"""Rows decoded with drafters on tiny engines, the length law checked after every round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from engine.engine import Engine
from engine.finish import FinishCause
from engine.lookup.drafter import PromptLookup
from engine.lookup.governor import FixedGovernor, Governor
from engine.lookup.reference import ReferenceText
from engine.lookup.stats import LookupStats
from engine.outcome import SeqId, StepOutcome
from engine.params import SequenceParams, SpeculationParams
from engine.scheduler.decode_loop import DecodeLoop
from engine.scheduler.drafters import Drafters
from engine.scheduler.job import Job
from engine.scheduler.pipeline import Pipeline
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.settings import SchedulerSettings
from engine.scheduler.stats import Counters
from tests.engine.inside import row_of, storage_of
from tests.engine.proofs.schedules import Request, near_tie
from tests.engine.rigs import prefill

SPECULATION = SpeculationParams()


@dataclass
class Written:
    """What a row came to."""

    tokens: list[int] = field(default_factory=list)
    last: StepOutcome | None = None
    dropped: str | None = None
    held_at_end: int = 0

    @property
    def finish(self) -> FinishCause | None:
        assert self.last is not None
        return self.last.finish


class Scripted:
    """A drafter that proposes what ``propose`` says of the answer so far, within its room."""

    def __init__(self, propose: Any) -> None:
        self.script = propose
        self.seen: list[int] = []
        self.accepted: list[int] = []

    stats = LookupStats()

    def start(self, prompt: Sequence[int], first_token: int) -> None:
        self.seen = [first_token]

    def propose(self, current: int, block_size: int, others: int = 0) -> tuple[int, ...]:
        assert self.seen[-1] == current
        return tuple(self.script(self.seen, block_size))

    def prepare(self, limit_tokens: int | None) -> bool:
        return True

    def catch_up(self, generated: Sequence[int]) -> None:
        self.seen += generated[len(self.seen) :]

    def accept(self, draft: Sequence[int], accepted: int, emitted: Sequence[int]) -> None:
        self.accepted.append(accepted)
        self.seen += emitted

    def discard(self, draft: Sequence[int]) -> None:
        pass

    def pipelines_plain_rounds(self) -> bool:
        return False


class OneRow:
    """The decode loop of a single row that was opened elsewhere, with a drafter of the test's."""

    def __init__(
        self, engine: Any, seq: SeqId, *, drafter: Any, max_draft: int = 7, pipelined: bool = True
    ) -> None:
        self._engine = engine
        pipeline = Pipeline(engine, Counters(), lambda: 0.0, is_pipelined=pipelined)
        drafters = Drafters(engine, SchedulerSettings(), lambda: 0.0)
        self._loop = DecodeLoop(engine, pipeline, drafters)
        params = SequenceParams((0,))
        request = ScheduledRequest("row", params)
        self._job = Job(request, params, bound=99, growth_tokens=None, now_s=0.0)
        self._job.seq, self._job.first_s = seq, 0.0
        if drafter is not None:
            self._job.drafts.speculation = SpeculationParams(max_draft=max_draft)
            self._job.drafts.drafter = drafter

    def run(self) -> Iterator[StepOutcome]:
        """Every step's outcome, up to the one that ends the row."""
        job = self._job
        while True:
            assert job.seq is not None
            can_step = self._engine.wants_step(job.seq)
            for outcome in self._loop.advance([job] if can_step else []):
                job.note(outcome, 0.0)
                steps = (outcome,) if isinstance(outcome, StepOutcome) else outcome.steps
                yield from steps
                if steps[-1].is_final:
                    return

    @property
    def dropped(self) -> str | None:
        return self._job.drafts.dropped

    @property
    def forwards(self) -> int:
        return self._job.forwards


def oracle(answer: Sequence[int], rng: Random, *, vocab: int) -> Scripted:
    """Knows the answer, and errs now and then."""

    def propose(seen: list[int], room: int) -> list[int]:
        ahead = list(answer[len(seen) : len(seen) + rng.randint(0, room)])
        wrong = rng.randrange(3 * len(ahead)) if ahead else 0
        return [(t + 1) % vocab if i == wrong else t for i, t in enumerate(ahead)]

    return Scripted(propose)


def lookup(
    governor: Governor | None = None,
    *,
    speculation: SpeculationParams = SPECULATION,
    references: Sequence[ReferenceText] = (),
) -> PromptLookup:
    """Prompt lookup; always full drafts unless a governor says else."""
    governor = FixedGovernor(speculation.max_draft) if governor is None else governor
    return PromptLookup(speculation, governor, references=references)


def decode(
    engine: Engine,
    params: SequenceParams,
    drafter: Any = None,
    *,
    max_draft: int = 7,
    text: Any = None,
    hooks: Any = None,
) -> Written:
    """One request from open to close; None drafts nothing."""
    written = Written()
    seq = engine.open(params, text=text, hooks=hooks)
    first = prefill(engine, seq)
    take(written, first)
    if not first.is_final:
        if drafter is not None:
            drafter.start(params.prompt_ids, engine.last_token(seq))
        rounds = OneRow(engine, seq, drafter=drafter, max_draft=max_draft)
        for outcome in rounds.run():
            take(written, outcome)
            assert_length_law(engine, seq)
        written.dropped = rounds.dropped
    written.held_at_end = engine.drafting.held_tokens(seq)
    engine.close(seq)
    return written


def take(written: Written, outcome: StepOutcome) -> None:
    """Note an outcome."""
    assert written.last is None or not written.last.is_final, "an outcome after the last one"
    written.last = outcome
    if outcome.token is not None and outcome.finish is not FinishCause.EOS:
        written.tokens.append(outcome.token)


def assert_length_law(engine: Engine, seq: SeqId) -> None:
    """KV holds what was written but the newest token, and one more for each step in flight."""
    row = row_of(engine, seq)
    if row.failed:
        return
    held = storage_of(engine).length(row.slot)
    law = row.prompt_tokens + row.written - 1 + len(row.in_flight)
    assert held in (law, law + 1 if row.phase.name == "FINISHED" else law), row


def assert_same(engine: Engine, params: SequenceParams, ours: Written, plain: Written) -> None:
    """Equal, or apart from a shown near-tie on: a hair on the two logits turns the draw."""
    if ours.tokens == plain.tokens:
        assert ours.finish == plain.finish
        assert ours.held_at_end == plain.held_at_end
        return
    pairs = zip(ours.tokens, plain.tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    assert at is not None, (params, ours, plain)
    request = Request(params, chunk=8, hooks=False, arrival=0, cancel=None)
    mine, theirs = ours.tokens[at], plain.tokens[at]
    assert near_tie(engine, request, plain.tokens[:at], theirs, mine), (params, ours, plain)
