"""Reads granted pieces of prompts, and learns how fast that goes."""

from collections.abc import Callable

from engine.engine import Engine
from engine.outcome import StepOutcome
from engine.prefill import PrefillPacer, plan_prefill
from engine.scheduler.job import Job
from engine.scheduler.stats import Counters
from engine.scheduler.tick import Grant


class PromptReader:
    """The prefill side of a tick.

    Args:
        engine: where the rows live.
        pacer: sizes the pieces.
        counters: counts them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        pacer: PrefillPacer,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._pacer = pacer
        self._counters = counters
        self._clock = clock

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of the next piece; 0: a prompt is one piece."""
        return self._pacer.chunk_tokens

    def read(self, job: Job, grant: Grant) -> StepOutcome | None:
        """Forward a granted piece of the job's row, and the prompt's last token if it is next.

        Returns:
            The answer's next token once all is read, or the error that ended the row.
        """
        assert job.seq is not None
        start = job.done_tokens
        began_s = self._clock()
        first = None
        for piece in plan_prefill(
            prompt_tokens=job.prefill_tokens, cached_tokens=start, chunk_tokens=grant.tokens
        ):
            if piece.start > start and not piece.is_last:
                break
            before_s = self._clock()
            first = self._engine.prefill(job.seq, piece).first
            job.done_tokens = piece.stop
            self._counters.prefill_tokens += piece.tokens
            if first is not None:
                break
            self._pacer.observe(piece.tokens, self._clock() - before_s)
        self._counters.prefill_pieces += 1
        self._counters.parked_pieces += grant.is_parked
        if job.first_s is None:
            job.prefill_s += self._clock() - began_s
        return first
