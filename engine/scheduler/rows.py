"""Opens the rows of requests and frees them, with what the prompt cache has and takes."""

from collections.abc import Callable

from engine.engine import Engine
from engine.outcome import SeqId
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.limits import CacheLimits, CacheStats
from engine.rows import PreemptedRow
from engine.scheduler.job import Job
from engine.scheduler.state import WaitingState
from engine.text.row_text import RowText


class Rows:
    """The rows of one engine.

    Args:
        engine: where they live.
        limits: of the prompt cache; None: there is none.
        clock: seconds, monotonic.
    """

    def __init__(
        self, engine: Engine, limits: CacheLimits | None, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._cache = None if limits is None else PromptCache(engine, limits, clock=clock)

    def open(self, job: Job) -> SeqId:
        """A row for a request: with the KV of a beginning that is known, or going on."""
        cache, request = self._cache, job.request
        if job.suspended is not None:
            seq = self._engine.resume(job.suspended)
            if cache is not None and request.cache is not None:
                cache.resume(seq, job.params, request.cache)
            return seq
        decoder = self._engine.tokenizer.decoder(keep_texts=request.keep_texts)
        job.text = RowText(decoder, request.stops)
        if cache is None or request.cache is None:
            return self._engine.open(job.params, text=job.text, hooks=request.hooks)
        return cache.open(job.params, text=job.text, hooks=request.hooks, use=request.cache)

    def suspend(self, seq: SeqId) -> PreemptedRow:
        """Close a row that is to go on later."""
        suspended = self._engine.preempt(seq)
        if self._cache is not None:
            self._cache.drop(seq)
        return suspended

    def cached_tokens(self, seq: SeqId) -> int:
        """Tokens whose KV a row that was just opened has."""
        return self._engine.cached_tokens(seq)

    def boundary(self, seq: SeqId) -> int | None:
        """Where a piece of a row's prompt has to end; None: anywhere."""
        return None if self._cache is None else self._cache.boundary(seq)

    def wants_step(self, job: Job) -> bool:
        """Whether one more step may be submitted for a job's row.

        Raises:
            EvalFailed: its KV was lost with another's step; no step of its own will tell.
        """
        assert job.seq is not None
        self._engine.check_row(job.seq)
        return self._engine.wants_step(job.seq)

    def at_piece(self, seq: SeqId, done_tokens: int) -> None:
        """A piece of a row's prompt was read."""
        if self._cache is not None:
            self._cache.at_piece(seq, done_tokens)

    def close(self, seq: SeqId, *, keeps: bool) -> None:
        """Free a row; ``keeps`` says whether it ended well, and may be remembered."""
        if self._cache is None:
            self._engine.close(seq)
        else:
            self._cache.close(seq, keeps=keeps)

    def waiting_state(self, job: Job) -> WaitingState:
        """How admission sees a request: what is known of its prompt needs no forward."""
        cache, use = self._cache, job.request.cache
        if cache is not None and use is not None and job.suspended is None:
            if job.covered[1] != cache.changes:
                job.covered = (cache.covered(job.params, use), cache.changes)
        else:
            job.covered = (0, -1)
        return job.waiting_state()

    @property
    def is_copying(self) -> bool:
        """Whether rows that have ended are still being remembered."""
        return self._cache is not None and self._cache.is_copying

    def advance(self) -> None:
        """Go on remembering rows that have ended, for a few milliseconds."""
        if self._cache is not None:
            self._cache.advance()

    def forget(self) -> None:
        """Drop what the prompt cache holds."""
        if self._cache is not None:
            self._cache.reset()

    def shut_down(self) -> None:
        """Let the prompt cache write what it has to write."""
        if self._cache is not None:
            self._cache.shut_down()

    def stats(self) -> CacheStats | None:
        """What the prompt cache holds and counts; None: there is none."""
        return None if self._cache is None else self._cache.stats()
