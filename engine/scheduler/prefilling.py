"""Prefills the chunks of prompts that a tick grants, and learns how fast that goes."""

from collections.abc import Callable

from engine.engine import Engine
from engine.outcome import StepOutcome
from engine.prefill import PrefillChunk, PrefillPacer, plan_prefill
from engine.scheduler.drafters import Drafters
from engine.scheduler.entry import RowPool
from engine.scheduler.job import Job
from engine.scheduler.stats import Counters
from engine.scheduler.tick import Grant


class Prefiller:
    """The prefill side of a tick.

    Args:
        engine: where the rows live.
        rows: how they were opened, and where their chunks have to end.
        drafters: measure what drafts cost before a first token.
        pacer: sizes the chunks.
        counters: counts them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        rows: RowPool,
        drafters: Drafters,
        pacer: PrefillPacer,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._drafters = drafters
        self.pacer = pacer
        self._counters = counters
        self._clock = clock

    def read(self, job: Job, grant: Grant) -> StepOutcome | None:
        """Forward a granted chunk of the job's prompt; read to its last token, the row decodes.

        That last token is the next step's, so that it costs no forward of its own, unless the
        grant draws. A chunk that ends at a boundary of the prompt cache is followed by the next.

        Returns:
            The first token, if it was drawn, or the error that ended the row.
        """
        assert job.seq is not None
        boundary = self._rows.cache.boundary(job.seq)
        chunks = plan_prefill(
            prompt_tokens=job.prefill_tokens,
            cached_tokens=job.done_tokens,
            chunk_tokens=grant.tokens,
            boundary=boundary,
        )
        for read, chunk in enumerate(chunks):
            if chunk.is_last:
                # Alone, the last token is a grant of its own: its progress is reported first.
                return None if read and grant.is_alone else self._end(job, grant, chunk)
            if read and chunk.start != boundary:
                return None
            outcome = self._forward(job, chunk, interleaved=grant.is_interleaved)
            if outcome is not None:
                return outcome
            self._rows.cache.at_piece(job.seq, chunk.stop)
        return None

    def _end(self, job: Job, grant: Grant, chunk: PrefillChunk) -> StepOutcome | None:
        """All but the last token is prefilled: the row decodes from here."""
        assert job.seq is not None
        self._drafters.measure(job)
        job.decodes_since(self._clock())
        if not grant.draws:
            self._engine.join(job.seq)
            return None
        self._counters.prefill_tokens += chunk.tokens
        self._counters.prefill_chunks += 1
        return self._engine.prefill(job.seq, chunk).first

    def _forward(self, job: Job, chunk: PrefillChunk, *, interleaved: bool) -> StepOutcome | None:
        assert job.seq is not None
        began_s = self._clock()
        outcome = self._engine.prefill(job.seq, chunk).first
        elapsed_s = self._clock() - began_s
        job.done_tokens = chunk.stop
        if job.first_s is None:
            job.prefill_s += elapsed_s
        if outcome is None:
            self.pacer.observe(chunk.tokens, elapsed_s, interleaved=interleaved)
        self._counters.prefill_tokens += chunk.tokens
        self._counters.prefill_chunks += 1
        self._counters.long_chunks += job.is_long
        return outcome
