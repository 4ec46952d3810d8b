"""One request at a time on an engine: prefill, the pipelined decode loop, text and timings.

Front ends that answer one person (``generate``, the chat) drive this from the engine thread; the
server's scheduler drives the same engine for many.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.engine import Engine
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome, Timings, Usage
from engine.params import SequenceParams, seeded
from engine.prefill import PrefillPacer, plan_prefill
from engine.text.row_text import RowText
from engine.ticket import Ticket


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How much of the prompt was read."""

    done_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became safe to show."""

    text: str
    tokens: int
    """Tokens written so far."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a request that was not cancelled."""

    text: str
    finish: FinishCause
    seed: int
    usage: Usage
    timings: Timings
    stop_match: str | None = None
    """The stop string that ended it."""


SessionEvent = PrefillProgress | TextDelta | Answer


class Session:
    """Answers one request at a time.

    Args:
        engine: where the row lives.
        pacer: how prompts are cut.
        pipelined: False submits a step only when the one before was read (for debugging).
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        pacer: PrefillPacer | None = None,
        pipelined: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._pacer = PrefillPacer() if pacer is None else pacer
        self._pipelined = pipelined
        self._clock = clock

    def generate(
        self, params: SequenceParams, *, stops: Sequence[str] = ()
    ) -> Iterator[SessionEvent]:
        """Events of one answer; the last is `Answer`. Closing the iterator frees the row.

        Raises:
            EngineError: at any point; what was yielded before stays valid.
        """
        params = seeded(params)
        text = RowText(self._engine.tokenizer.decoder(), stops)
        run = _Run(params, text, self._clock)
        seq = self._engine.open(params, text=text)
        try:
            if params.max_tokens == 0:
                run.finish = FinishCause.LENGTH
            else:
                yield from self._prefill(seq, run)
                yield from self._decode(seq, run)
            yield run.answer()
        finally:
            self._engine.close(seq)

    def _prefill(self, seq: SeqId, run: "_Run") -> Iterator[SessionEvent]:
        prompt_tokens = len(run.params.prompt_ids)
        done = 0
        while done < prompt_tokens:
            plan = plan_prefill(
                prompt_tokens=prompt_tokens,
                cached_tokens=done,
                chunk_tokens=self._pacer.chunk_tokens,
            )
            piece = next(plan)
            before = self._clock()
            outcome = self._engine.prefill(seq, piece)
            done = outcome.done_tokens
            if outcome.first is None:
                self._pacer.observe(piece.tokens, self._clock() - before)
                yield PrefillProgress(done, prompt_tokens)
            else:
                yield from run.take(outcome.first)

    def _decode(self, seq: SeqId, run: "_Run") -> Iterator[SessionEvent]:
        engine = self._engine
        ticket: Ticket | None = None
        while run.finish is None:
            if ticket is None:
                ticket = engine.submit([seq])
            ahead = engine.submit([seq]) if self._pipelined and engine.wants_step(seq) else None
            for outcome in engine.collect(ticket):
                yield from run.take(outcome)
            ticket = ahead


class _Run:
    """What one answer has come to so far."""

    def __init__(self, params: SequenceParams, text: RowText, clock: Callable[[], float]) -> None:
        self.params = params
        self.finish: FinishCause | None = None
        self._text = text
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._last = self._started
        self._tokens = 0
        self._pieces: list[str] = []

    def take(self, outcome: StepOutcome) -> Iterator[SessionEvent]:
        """Note one step; its text, if any, is an event."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last
        if outcome.token is not None and outcome.finish is not FinishCause.EOS:
            self._tokens += 1
        self.finish = outcome.finish
        if outcome.text:
            self._pieces.append(outcome.text)
            yield TextDelta(outcome.text, self._tokens)
        if outcome.error is not None:
            raise outcome.error

    def answer(self) -> Answer:
        """The closing event."""
        assert self.finish is not None
        assert self.params.sampling.seed is not None
        prompt_tokens = len(self.params.prompt_ids)
        first = self._started if self._first is None else self._first
        forwarded = 0 if self._first is None else prompt_tokens
        return Answer(
            text="".join(self._pieces),
            finish=self.finish,
            seed=self.params.sampling.seed,
            usage=Usage(prompt_tokens, self._tokens),
            timings=Timings(
                prompt_n=forwarded,
                prompt_s=first - self._started,
                predicted_n=self._tokens,
                predicted_s=self._last - first,
                ttft_s=first - self._started,
            ),
            stop_match=self._text.stop_match,
        )
