"""Random schedules: requests that arrive, share steps, draft, are cancelled and leave."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from engine.engine import Engine
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome
from engine.params import SamplingParams, SequenceParams
from engine.prefill import PrefillChunk, plan_prefill
from engine.rows import Phase
from engine.steps import Ticket
from tests.engine.inside import row_of, rows_of, storage_of

VOCAB = 259
NEAR_TIE = 1e-3
"""Logits this close, after the noise of the draw, may fall either way in a wider kernel."""


class OddTokens:
    """A mask hook: after an even token only odd ones may follow."""

    def mask(self, ids: Any) -> np.ndarray | None:
        if ids[-1] % 2:
            return None
        banned = np.zeros(VOCAB, np.float32)
        banned[::2] = -np.inf
        return banned

    def finish(self, ids: Any) -> FinishCause | None:
        return FinishCause.LENGTH if len(ids) % 29 == 0 else None


@dataclass(frozen=True)
class Request:
    """One row of a schedule."""

    params: SequenceParams
    chunk: int
    hooks: bool
    arrival: int
    cancel: int | None
    """Tick at whose end the client goes away."""


@dataclass
class Written:
    """What a row came to."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishCause | None = None
    cancelled: bool = False

    def take(self, outcome: StepOutcome) -> bool:
        assert outcome.error is None, outcome.error
        assert self.finish is None, "an outcome after the last one"
        if outcome.finish is not FinishCause.EOS:
            assert outcome.token is not None
            self.tokens.append(outcome.token)
        self.finish = outcome.finish
        return outcome.is_final


def random_sampling(rng: Random) -> SamplingParams:
    """Any mix of parameters, greedy ones as often as others."""
    seed = rng.randrange(2**53)
    kind = rng.randrange(12)
    plain: dict[str, Any] = {"temperature": rng.choice((0.7, 1.0, 1.3)), "seed": seed}
    mixes: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0, "seed": seed},
        {"temperature": 0.0, "seed": seed},
        plain,
        {**plain, "top_k": rng.choice((1, 5, 40)), "top_p": rng.choice((1.0, 0.8))},
        {**plain, "min_p": 0.05, "typical_p": rng.choice((1.0, 0.9))},
        {**plain, "repetition_penalty": 1.3, "repetition_context_size": rng.choice((4, 64, -1))},
        {"temperature": 0.0, "seed": seed, "frequency_penalty": 0.4, "presence_penalty": 0.3},
        {**plain, "logit_bias": {rng.randrange(VOCAB): 3.0, rng.randrange(VOCAB): -5.0}},
        {"temperature": 0.0, "seed": seed, "dry_multiplier": 0.8, "dry_allowed_length": 1},
        {**plain, "xtc_probability": 0.5, "xtc_threshold": 0.05, "top_n_sigma": 2.0},
        {**plain, "logprobs": 2},
        {**plain, "mirostat": rng.choice((1, 2))},
    )
    return SamplingParams(**mixes[kind])


def random_bound(rng: Random, prompt: int, most: int) -> int | None:
    """A context that is far, met at the prompt's end, or met exactly when the budget is."""
    return rng.choice((None, None, prompt + 6, prompt + 1, prompt + 2, prompt + most))


def random_requests(rng: Random) -> list[Request]:
    """Two to five requests."""
    requests = []
    for _ in range(rng.randint(2, 5)):
        prompt = tuple(rng.randrange(256) for _ in range(rng.choice((1, 2, 7, 15, 16, 17, 33))))
        most = rng.choice((1, 2, 5, 9, 14))
        params = SequenceParams(
            prompt_ids=prompt,
            sampling=random_sampling(rng),
            max_tokens=most,
            min_tokens=rng.choice((0, 0, 2)),
            context_tokens=random_bound(rng, len(prompt), most),
            ignore_eos=rng.random() < 0.2,
            choice=rng.choice((0, 0, 1)),
        )
        requests.append(
            Request(
                params,
                chunk=rng.choice((4, 8, 64)),
                hooks=rng.random() < 0.15,
                arrival=rng.randrange(6),
                cancel=rng.randrange(1, 12) if rng.random() < 0.15 else None,
            )
        )
    return requests


def alone(engine: Engine, request: Request) -> Written:
    """The request with the engine to itself, one step at a time."""
    written = Written()
    seq = engine.open(request.params, hooks=OddTokens() if request.hooks else None)
    done = False
    for chunk in chunks(request):
        first = engine.prefill(seq, chunk).first
        done = first is not None and written.take(first)
    while not done:
        (outcome,) = engine.step([seq])
        done = written.take(outcome)
    engine.close(seq)
    return written


def chunks(request: Request) -> list[PrefillChunk]:
    return list(
        plan_prefill(prompt_tokens=len(request.params.prompt_ids), chunk_tokens=request.chunk)
    )


class Row:
    """A request inside a schedule."""

    def __init__(self, request: Request, expected: Written) -> None:
        self.request, self.expected = request, expected
        self.written = Written()
        self.seq: SeqId | None = None
        self.chunks = chunks(request)
        self.filled = 0
        self.closed = False


class Schedule:
    """Carries one random schedule out and checks the length law after every call.

    Args:
        engine: shared by schedules, so that slots are used again.
        requests: what arrives.
        expected: what each of them wrote alone; drafts are made of it.
        rng: of everything a client decides.
    """

    def __init__(
        self, engine: Engine, requests: list[Request], expected: list[Written], rng: Random
    ) -> None:
        self.engine, self.rng = engine, rng
        self.rows = [Row(*pair) for pair in zip(requests, expected, strict=True)]
        self.ticket: Ticket | None = None
        self.verified = 0
        self.together = 0
        """Rounds of several rows."""

    def run(self) -> list[Written]:
        tick = 0
        while not all(row.closed for row in self.rows):
            self.admit(tick)
            self.fill()
            self.draft()
            self.decode()
            self.leave(tick)
            tick += 1
            assert tick < 500
        assert not rows_of(self.engine)
        assert not storage_of(self.engine).arrays(), "an idle engine holds no KV"
        return [row.written for row in self.rows]

    # -- what a client does in a tick

    def admit(self, tick: int) -> None:
        for row in self.rows:
            if row.seq is None and row.request.arrival <= tick and not row.closed:
                hooks = OddTokens() if row.request.hooks else None
                row.seq = self.engine.open(row.request.params, hooks=hooks)
                self.check()

    def fill(self) -> None:
        for row in self.rows:
            if self.phase(row) is Phase.PREFILL and self.rng.random() < 0.7:
                chunk = row.chunks[row.filled]
                row.filled += 1
                assert row.seq is not None
                if chunk.is_last and self.rng.random() < 0.5:
                    self.engine.join(row.seq)
                    self.check()
                    continue
                outcome = self.engine.prefill(row.seq, chunk)
                self.check()
                if outcome.first is not None:
                    self.take(outcome.first)

    def draft(self) -> None:
        """Rounds of rows by themselves, or one of several rows, some of them without a draft."""
        resting = [
            row
            for row in self.rows
            if self.phase(row) is Phase.DECODE and not self.record(row).in_flight
        ]
        if self.engine.verifies_together and len(resting) > 1 and self.rng.random() < 0.7:
            self.verify(self.rng.sample(resting, self.rng.randint(2, len(resting))))
            self.together += 1
            return
        for row in resting:
            if self.rng.random() < 0.3 and self.proposal(row):
                self.verify([row])

    def verify(self, rows: list[Row]) -> None:
        drafts = {row.seq: self.proposal(row) for row in rows if row.seq is not None}
        outcomes = self.engine.verify_together(drafts)
        self.check()
        assert [outcome.seq for outcome in outcomes] == list(drafts)
        for outcome in outcomes:
            assert outcome.drafted == len(drafts[outcome.seq])
            self.verified += outcome.drafted > 0
            for step in outcome.steps:
                self.take(step)

    def proposal(self, row: Row) -> list[int]:
        """What the row wrote alone, right or wrong at one place; nothing if it may not draft."""
        assert row.seq is not None
        params = row.request.params.sampling
        if params.has_feedback or params.logprobs is not None:
            return []
        room = self.engine.draft_room(row.seq, self.rng.randint(0, 3))
        ahead = row.expected.tokens[len(row.written.tokens) :][:room]
        wrong = self.rng.randrange(2 * len(ahead) + 1)
        return [t if i != wrong else (t + 1) % VOCAB for i, t in enumerate(ahead)]

    def decode(self) -> None:
        """Submit, maybe submit ahead, collect; now and then the ticket stays in flight."""
        if self.ticket is None:
            self.ticket = self.submit(self.able())
            if self.ticket is None:
                return
        if self.rng.random() < 0.2:
            return  # other things happen while the step is under way
        later = self.submit(self.able()) if self.rng.random() < 0.7 else None
        outcomes = self.engine.collect(self.ticket)
        self.ticket = later
        self.check()
        for outcome in outcomes:
            self.take(outcome)

    def leave(self, tick: int) -> None:
        for row in self.rows:
            gone = row.request.cancel is not None and row.request.cancel <= tick
            if row.closed or not (gone or (row.written.finish and self.rng.random() < 0.7)):
                continue
            row.written.cancelled = row.written.finish is None
            if row.seq is not None:
                self.engine.close(row.seq)
                self.engine.close(row.seq)
            row.closed = True
            self.check()

    # -- helpers

    def able(self) -> list[SeqId]:
        """Some of the rows that may take one more step; usually all."""
        able = [
            row.seq
            for row in self.rows
            if self.phase(row) is Phase.DECODE
            and row.seq is not None
            and self.engine.wants_step(row.seq)
            and len(self.record(row).in_flight) < 2
        ]
        if self.rng.random() < 0.25:
            able = [seq for seq in able if self.rng.random() < 0.6]
        self.rng.shuffle(able)
        return able

    def submit(self, seqs: list[SeqId]) -> Ticket | None:
        if not seqs:
            return None
        ticket = self.engine.submit(seqs)
        self.check()
        return ticket

    def take(self, outcome: StepOutcome) -> None:
        row = next(row for row in self.rows if row.seq == outcome.seq)
        assert not row.closed
        row.written.take(outcome)

    def phase(self, row: Row) -> Phase | None:
        return None if row.seq is None or row.closed else self.record(row).phase

    def record(self, row: Row) -> Any:
        assert row.seq is not None
        return row_of(self.engine, row.seq)

    def check(self) -> None:
        """The length law, for every open row; one that decodes is in a step or may take one."""
        for row in self.rows:
            phase = self.phase(row)
            if phase is None:
                continue
            record = self.record(row)
            held = storage_of(self.engine).length(record.slot)
            if phase is Phase.PREFILL:
                done = row.chunks[row.filled - 1].stop if row.filled else 0
                assert held == done
                continue
            law = record.prompt_tokens + record.written - 1 + len(record.in_flight)
            ended = phase is Phase.FINISHED
            assert ended or record.in_flight or self.engine.wants_step(row.seq), row.request
            assert held in ((law, law + 1) if ended else (law,)), (row.request, held, law)
            if ended and row.written.finish is not None:
                assert held == law + (row.written.finish is FinishCause.EOS)


def near_tie(engine: Engine, request: Request, prefix: list[int], a: int, b: int) -> bool:
    """Whether ``b`` is drawn after ``prefix`` instead of ``a`` once it is raised by a hair."""
    sampling = request.params.sampling
    bias = dict(sampling.logit_bias)
    bias[b] = bias.get(b, 0.0) + NEAR_TIE / 2
    bias[a] = bias.get(a, 0.0) - NEAR_TIE / 2
    shifted = replace(
        request,
        params=replace(
            request.params,
            prompt_ids=(*request.params.prompt_ids, *prefix),
            sampling=replace(sampling, logit_bias=bias),
            max_tokens=1,
            min_tokens=0,
            context_tokens=None,
            stop_ids=frozenset(),
            ignore_eos=True,
        ),
        chunk=request.chunk,
    )
    return alone(engine, shifted).tokens[:1] == [b]
