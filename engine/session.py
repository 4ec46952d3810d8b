"""One request at a time on an engine: a batch of one over the scheduler.

Front ends that answer one person (``generate``, the chat) drive this from the engine thread. What
it emits is what a server's scheduler emits, and comes from the same code.
"""

import time
from collections.abc import Callable, Generator, Sequence

from engine.engine import Engine
from engine.events import Cancelled, Delta, Done, Failed, PrefillProgress, Started
from engine.lookup.reference import ReferenceText
from engine.lookup.widths import WidthCosts
from engine.params import SequenceParams
from engine.prefill import PrefillPacer
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.key import CacheUse
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.scheduler import BatchScheduler
from engine.scheduler.settings import LookupSettings, SchedulerSettings
from engine.scheduler.state import Limits

SessionEvent = Started | PrefillProgress | Delta | Done

ID = "session"
"""The id of its one request."""


class Session:
    """Answers one request at a time.

    Args:
        engine: where the row lives.
        pacer: how prompts are cut.
        pipelined: False submits a step only when the one before was read (for debugging).
        width_costs: what verify rounds cost here, if it was measured before.
        builds_kernels: whether a width's first forward is slow here (a GPU), so that every width
            is run before the first token, whatever the policy.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        pacer: PrefillPacer | None = None,
        pipelined: bool = True,
        width_costs: WidthCosts | None = None,
        builds_kernels: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self.width_costs = width_costs
        """What verify rounds cost here; measured by the first request that drafts."""
        self._builds_kernels = builds_kernels
        self._pacer = PrefillPacer() if pacer is None else pacer
        self._pipelined = pipelined
        self._clock = clock

    def generate(
        self,
        params: SequenceParams,
        *,
        stops: Sequence[str] = (),
        continues_text: bool = False,
        references: Sequence[ReferenceText] = (),
        cache: PromptCache | None = None,
    ) -> Generator[SessionEvent, None, None]:
        """Events of one answer; the last is `Done`. Closing the iterator frees the row.

        Args:
            params: the request; with ``speculation`` it drafts, or `Started` says why it cannot.
            stops: stop strings.
            continues_text: whether the answer continues the prompt's text.
            references: texts that drafts may also be copied from.
            cache: of this engine; the KV of earlier turns is used, and this turn's is kept.

        Raises:
            EngineError: at any point; what was yielded before stays valid.
        """
        scheduler = BatchScheduler(
            self._engine, self._settings(), pacer=self._pacer, cache=cache, clock=self._clock
        )
        request = ScheduledRequest(
            ID,
            params,
            tuple(stops),
            continues_text=continues_text,
            cache=None if cache is None else CacheUse(),
            references=tuple(references),
            keeps_unfinished=True,
        )
        scheduler.submit(request)
        try:
            while not scheduler.idle:
                for event in scheduler.tick():
                    if isinstance(event, Failed):
                        raise event.error
                    assert not isinstance(event, Cancelled)
                    yield event
        finally:
            scheduler.cancel(ID)
            self.width_costs = scheduler.stats().width_costs
            if cache is not None:
                cache.settle()

    def _settings(self) -> SchedulerSettings:
        lookup = LookupSettings(
            None,
            builds_kernels=self._builds_kernels,
            width_costs=self.width_costs,
            measures_short=False,
        )
        limits = Limits(parallel=1, first_tokens_alone=True)
        return SchedulerSettings(limits, 0, lookup=lookup, is_pipelined=self._pipelined)
