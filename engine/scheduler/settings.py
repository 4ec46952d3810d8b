"""The scheduler's settings, checked once."""

from dataclasses import dataclass, field

from engine.errors import InvalidParams
from engine.lookup.widths import WidthCosts
from engine.params import SpeculationParams
from engine.prompt_cache.limits import CacheLimits
from engine.scheduler.state import Limits

DEFAULT_LOOKUP_BATCH = 4
"""Most active rows with which drafting pays (ADR 0014)."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """How answers are drafted by prompt lookup."""

    speculation: SpeculationParams | None = field(default_factory=SpeculationParams)
    """For requests that bring none of their own and do not opt out; None: those do not draft."""
    max_batch: int = DEFAULT_LOOKUP_BATCH
    """Most active rows with which anybody drafts."""
    builds_kernels: bool = True
    """Whether a width's first forward is slow here (a GPU), so that all are run beforehand."""
    width_costs: WidthCosts | None = None
    """What verify rounds cost here, if it was measured before."""
    measures_short: bool = True
    """Whether costs are measured on an answer too short to use them all, for those that follow."""

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise InvalidParams(
                "prompt_lookup_max_batch", f"must be 1 or more, got {self.max_batch}"
            )


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a server may set."""

    limits: Limits = field(default_factory=Limits)
    queue_depth: int = 32
    """Most requests that wait for a slot."""
    kv_budget_tokens: int | None = None
    """Most token positions of KV in all rows together, as allocated; None: no bound."""
    prompt_cache: CacheLimits | None = None
    """Bounds of the prompt cache; None: there is none."""
    lookup: LookupSettings | None = None
    """How answers are drafted; None: only those whose requests bring their own settings."""
    is_pipelined: bool = True
    """False reads each step before the next is submitted (for debugging)."""

    def __post_init__(self) -> None:
        if self.limits.parallel < 1:
            raise InvalidParams("parallel", f"must be 1 or more, got {self.limits.parallel}")
        if self.limits.grant_interval < 0:
            raise InvalidParams(
                "prefill_grant_interval",
                f"must be 0 (off) or more, got {self.limits.grant_interval}",
            )
        if self.limits.short_chunks < 1:
            raise InvalidParams(
                "short_chunks", f"must be 1 or more, got {self.limits.short_chunks}"
            )
        if self.limits.short_tokens < 0:
            raise InvalidParams(
                "short_tokens", f"must be 0 or more, got {self.limits.short_tokens}"
            )
        if self.queue_depth < 0:
            raise InvalidParams("max_queue_depth", f"must be 0 or more, got {self.queue_depth}")
        if self.kv_budget_tokens is not None and self.kv_budget_tokens < 1:
            raise InvalidParams("kv_budget", f"must be 1 or more, got {self.kv_budget_tokens}")
