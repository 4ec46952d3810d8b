"""The arms of `engine.parity` that answer through the scheduler, one request at a time."""

from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.errors import InternalFault
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, SpeculationParams
from engine.parity import Arm, ArmUnfit, ParityRequest
from engine.parity_engine import NotingEngine
from engine.prefill import PrefillPacer
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.request import Delta, Failed, ScheduledRequest, Started
from engine.scheduler.scheduler import BatchScheduler
from engine.scheduler.settings import LookupSettings, SchedulerSettings
from engine.scheduler.state import Limits

if TYPE_CHECKING:
    from engine.models.load import LoadedModel

CACHED_FROM_TOKENS = 1
"""Shortest beginning that these arms' prompt cache takes over: prompts may be short."""


def scheduler_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The request alone in a scheduler, without cache and drafts."""
    return _Alone(loaded, request, SchedulerSettings(_ONE_SLOT)).answer()


def cache_miss_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The same with a prompt cache that knows nothing yet."""
    return _Alone(loaded, request, _with_cache()).answer()


def cache_hit_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The request over what its like, asked before, left in the scheduler's prompt cache.

    Raises:
        ArmUnfit: nothing could be taken over.
    """
    alone = _Alone(loaded, request, _with_cache())
    alone.answer()
    answer = alone.answer()
    if not alone.cached_tokens:
        raise ArmUnfit("the prompt cache took nothing over")
    return answer


def scheduler_lookup_tokens(loaded: "LoadedModel", request: ParityRequest) -> tuple[int, ...]:
    """The request in a scheduler that drafts whenever it can.

    Raises:
        ArmUnfit: no draft was made: the family is not eligible, or nothing in the text repeats.
    """
    speculation = SpeculationParams(policy=LookupPolicy.FIXED)
    # Which drafts pay is not asked here, so nothing has to be measured.
    costs = WidthCosts((1.0,) * (speculation.max_draft + 1))
    lookup = LookupSettings(speculation, builds_kernels=False, width_costs=costs)
    alone = _Alone(loaded, request, SchedulerSettings(_ONE_SLOT, lookup=lookup))
    answer = alone.answer()
    if not alone.has_verified:
        raise ArmUnfit("the scheduler drafted nothing")
    return answer


SCHEDULER_ARMS: MappingProxyType[str, Arm] = MappingProxyType(
    {
        "scheduler": scheduler_tokens,
        "cache-miss": cache_miss_tokens,
        "cache-hit": cache_hit_tokens,
        "scheduler-lookup": scheduler_lookup_tokens,
    }
)
"""By name."""

_ONE_SLOT = Limits(parallel=1)


def _with_cache() -> SchedulerSettings:
    return SchedulerSettings(_ONE_SLOT, prompt_cache=CacheLimits(min_tokens=CACHED_FROM_TOKENS))


class _Alone:
    """A scheduler with one slot, and nobody else's requests."""

    def __init__(
        self, loaded: "LoadedModel", request: ParityRequest, settings: SchedulerSettings
    ) -> None:
        self._request = request
        self._engine = NotingEngine(loaded, request)
        pacer = PrefillPacer(fixed_tokens=request.chunk_tokens)
        self._scheduler = BatchScheduler(self._engine, settings, pacer=pacer)
        self._asked = 0
        self.cached_tokens = 0
        """Prompt tokens that the newest answer took from the cache."""

    def answer(self) -> tuple[int, ...]:
        """The request's answer, as the scheduler's events tell it.

        Raises:
            EngineError: it failed.
            InternalFault: the events and the engine do not tell the same.
        """
        self._asked += 1
        scheduler, told = self._scheduler, list[int]()
        scheduler.submit(ScheduledRequest(str(self._asked), self._request.params))
        while not scheduler.idle:
            for event in scheduler.tick():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Started):
                    self.cached_tokens = event.cached_tokens
                elif isinstance(event, Delta):
                    told += event.tokens
        if tuple(told) != self._engine.last_answer:
            raise InternalFault(ValueError("the scheduler told other tokens than it wrote"))
        return tuple(told)

    @property
    def has_verified(self) -> bool:
        """Whether any draft was verified."""
        return self._scheduler.stats().counters.verify_rounds > 0
