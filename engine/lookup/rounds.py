"""The decode loop of one row with a drafter: verify rounds where it proposes, plain steps else.

Rules (behaviour in the tests of the same names):
    - each round asks the drafter on the committed tokens; no proposal is a plain step;
    - plain steps keep one step in flight once the drafter says that nothing matches;
    - a proposal found while a step is in flight is retracted, that step is read and committed,
      and the next round asks again;
    - where a draft has no room, plain steps keep one in flight too, and nobody is asked;
    - a drafter that fails, or is not in step with its row, is dropped, and the row goes on plainly.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from engine.errors import EngineError, InvalidParams
from engine.lookup.drafter import Drafter
from engine.outcome import SeqId, StepOutcome, VerifyOutcome

Ticket = TypeVar("Ticket")

DRAFTER_ERRORS = (
    EngineError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a faulty drafter raises: guessing may cost its row nothing."""


class DecodeEngine(Protocol[Ticket]):
    """What the loop asks of the engine."""

    def submit(self, seqs: Sequence[SeqId]) -> Ticket:
        """Dispatch one step."""
        ...

    def collect(self, ticket: Ticket) -> list[StepOutcome]:
        """Read one step."""
        ...

    def wants_step(self, seq: SeqId) -> bool:
        """Whether one more step may be submitted."""
        ...

    def verify(self, seq: SeqId, draft: Sequence[int]) -> VerifyOutcome:
        """Run one verify round."""
        ...

    def draft_room(self, seq: SeqId, max_draft: int) -> int:
        """Most tokens a draft may have now."""
        ...

    def last_token(self, seq: SeqId) -> int:
        """The newest committed token."""
        ...


class Rounds(Generic[Ticket]):
    """Decodes one row to its end.

    Args:
        engine: where the row lives.
        seq: a row that decodes.
        drafter: started with the row's prompt and first token; None: plain steps only.
        max_draft: longest draft.
        pipelined: False never keeps a step in flight.
    """

    def __init__(
        self,
        engine: DecodeEngine[Ticket],
        seq: SeqId,
        *,
        drafter: Drafter | None,
        max_draft: int = 0,
        pipelined: bool = True,
    ) -> None:
        self._engine = engine
        self._seq = seq
        self._drafter = drafter
        self._max_draft = max_draft
        self._pipelined = pipelined
        self._ticket: Ticket | None = None
        self._has_room = True
        self.forwards = 0
        """Steps and verify rounds that were read, whoever was asked before them."""
        self.dropped: Exception | None = None
        """Why the drafter was dropped, if it was."""

    def run(self) -> Iterator[StepOutcome]:
        """Every step's outcome, up to the one that ends the row."""
        while True:
            for outcome in self._round():
                yield outcome
                if outcome.is_final:
                    return

    def _round(self) -> Sequence[StepOutcome]:
        draft = self._ask()
        if self._ticket is not None:
            if draft:
                self._retract(draft)
                return self._read(keep=False)
            return self._read(keep=True)
        if draft:
            return self._verify(draft)
        self._ticket = self._engine.submit([self._seq])
        return self._read(keep=self._pipelines())

    def _pipelines(self) -> bool:
        """Whether a step may stay in flight: the next round will most likely be a plain one."""
        if self._drafter is None or not self._has_room:
            return True
        return self._drafter.pipelines_plain_rounds()

    def _ask(self) -> Sequence[int]:
        if self._drafter is None:
            return ()
        room = self._engine.draft_room(self._seq, self._max_draft)
        self._has_room = room > 0
        if room > 0:
            with self._drafting() as drafter:
                # No drafter may make a round longer than the row has room for.
                return drafter.ask(self._engine.last_token(self._seq), room)[:room]
        return ()

    @contextmanager
    def _drafting(self) -> Iterator[Drafter]:
        """The drafter; what it raises drops it."""
        assert self._drafter is not None
        try:
            yield self._drafter
        except DRAFTER_ERRORS as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        self._drafter, self.dropped = None, error

    def _retract(self, draft: Sequence[int]) -> None:
        with self._drafting() as drafter:
            drafter.retract(draft)

    def _read(self, *, keep: bool) -> Sequence[StepOutcome]:
        """Read the step in flight, after dispatching the next one if it is to be kept."""
        assert self._ticket is not None
        ticket, self._ticket = self._ticket, None
        if keep and self._pipelined and self._engine.wants_step(self._seq):
            self._ticket = self._engine.submit([self._seq])
        outcomes = self._engine.collect(ticket)
        self.forwards += 1
        if self._drafter is not None:
            with self._drafting() as drafter:
                drafter.observe([o.token for o in outcomes if o.token is not None])
        return outcomes

    def _verify(self, draft: Sequence[int]) -> Sequence[StepOutcome]:
        try:
            outcome = self._engine.verify(self._seq, draft)
        except InvalidParams as error:  # the drafter made up a token
            self._drop(error)
            return self._round()
        self.forwards += 1
        emitted = [step.token for step in outcome.steps if step.token is not None]
        with self._drafting() as drafter:
            drafter.accept(draft, outcome.accepted, emitted)
        return outcome.steps
