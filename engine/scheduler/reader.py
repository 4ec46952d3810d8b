"""Reads granted pieces of prompts, and learns how fast that goes."""

from collections.abc import Callable

from engine.engine import Engine
from engine.outcome import StepOutcome
from engine.prefill import PrefillChunk, PrefillPacer, plan_prefill
from engine.scheduler.job import Job
from engine.scheduler.rows import Rows
from engine.scheduler.stats import Counters
from engine.scheduler.tick import Grant


class PromptReader:
    """The prefill side of a tick.

    Args:
        engine: where the rows live.
        rows: how they were opened, and where their pieces have to end.
        pacer: sizes the pieces.
        counters: counts them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        rows: Rows,
        pacer: PrefillPacer,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._pacer = pacer
        self._counters = counters
        self._clock = clock

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of the next piece; 0: a prompt is one piece."""
        return self._pacer.chunk_tokens

    @property
    def beside(self) -> tuple[int, float]:
        """`TickState.beside_tokens` and `TickState.beside_part`."""
        return self._pacer.interleaved_tokens, self._pacer.interleaved_share

    def read(self, job: Job, grant: Grant) -> StepOutcome | None:
        """Forward a granted piece of the job's row; read to its last token, the row decodes.

        That last token is the next step's, so that it costs no forward of its own, unless the
        grant draws. A piece that ends at a boundary of the prompt cache is followed by the next.

        Returns:
            The first token, if it was drawn, or the error that ended the row.
        """
        assert job.seq is not None
        boundary = self._rows.boundary(job.seq)
        pieces = plan_prefill(
            prompt_tokens=job.prefill_tokens,
            cached_tokens=job.done_tokens,
            chunk_tokens=grant.tokens,
            boundary=boundary,
        )
        read = 0
        for piece in pieces:
            if piece.is_last:
                job.decodes_since(self._clock())
                if grant.draws:
                    self._counters.prefill_tokens += piece.tokens
                    self._counters.prefill_pieces += 1
                    return self._engine.prefill(job.seq, piece).first
                self._engine.join(job.seq)
            elif read and piece.start != boundary:
                return None
            else:
                outcome = self._forward(job, piece, beside=grant.is_beside)
                if outcome is not None:
                    return outcome
                self._rows.at_piece(job.seq, piece.stop)
                read += 1
        return None

    def _forward(self, job: Job, piece: PrefillChunk, *, beside: bool) -> StepOutcome | None:
        assert job.seq is not None
        began_s = self._clock()
        outcome = self._engine.prefill(job.seq, piece).first
        elapsed_s = self._clock() - began_s
        job.done_tokens = piece.stop
        if job.first_s is None:
            job.prefill_s += elapsed_s
        if outcome is None:
            self._pacer.observe(piece.tokens, elapsed_s, interleaved=beside)
        self._counters.prefill_tokens += piece.tokens
        self._counters.prefill_pieces += 1
        self._counters.parked_pieces += job.is_long
        return outcome
