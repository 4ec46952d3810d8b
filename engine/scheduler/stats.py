"""What the scheduler counts, and the snapshot of it that leaves the engine thread."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from engine.finish import FinishCause
from engine.lookup.widths import WidthCosts
from engine.outcome import StepOutcome, VerifyOutcome
from engine.prompt_cache.limits import CacheStats
from engine.scheduler.admission import WaitReason
from engine.scheduler.queue import Priority


class SchedulerPhase(StrEnum):
    """Whether new requests are taken."""

    SERVING = "serving"
    DRAINING = "draining"
    """Running rows continue, new ones are refused."""
    UNHEALTHY = "unhealthy"
    """The backend failed too often in a row; everything was ended with an error."""


@dataclass(slots=True)
class Counters:
    """Totals since the scheduler was made."""

    requests: int = 0
    """Taken into the queue."""
    refused: int = 0
    """Refused by `submit`: full, closed, or can never run."""
    started: int = 0
    finished: dict[FinishCause, int] = field(default_factory=dict)
    failed: int = 0
    cancelled: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    """Of finished requests."""
    completion_tokens: int = 0
    """Of finished, failed and cancelled requests."""
    prefill_tokens: int = 0
    """Forwarded; what a preempted row reads again is counted again."""
    prefill_chunks: int = 0
    long_chunks: int = 0
    """Pieces of long prefills."""
    ticks: int = 0
    mixed_ticks: int = 0
    """Ticks that both decoded and read prompts."""
    decode_steps: int = 0
    lookahead_steps: int = 0
    """Steps that were submitted before the one before them was read."""
    decode_tokens: int = 0
    verify_rounds: int = 0
    draft_tokens: int = 0
    """Tokens that verify rounds were given."""
    draft_tokens_accepted: int = 0
    generation_s: float = 0.0
    """From first to last token, summed over the requests."""

    def note(self, outcome: StepOutcome | VerifyOutcome) -> None:
        """Count what a step or a verify round wrote to a row."""
        if isinstance(outcome, StepOutcome):
            self.decode_tokens += outcome.token is not None
            return
        self.verify_rounds += 1
        self.draft_tokens += outcome.drafted
        self.draft_tokens_accepted += outcome.accepted
        self.decode_tokens += sum(step.token is not None for step in outcome.steps)

    def snapshot(self) -> "Counters":
        """A copy that stays as it is."""
        return replace(self, finished=dict(self.finished))


@dataclass(frozen=True, slots=True)
class SlotStats:
    """One slot, busy."""

    slot: int
    id: str
    priority: Priority
    prompt_tokens: int
    prompt_done_tokens: int
    cached_tokens: int
    completion_tokens: int
    max_tokens: int | None
    is_paused: bool
    """Whether its reader keeps it from going on."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler at one moment."""

    phase: SchedulerPhase
    parallel: int
    """Slots, busy and free."""
    slots: tuple[SlotStats, ...]
    """The busy ones."""
    queue_depths: dict[Priority, int]
    queue_capacity: int
    blocked: WaitReason | None
    """Why the queue's head waits."""
    counters: Counters
    kv_rows: int
    """Rows the KV pool has allocated."""
    kv_positions: int
    """Token positions of each of them."""
    kv_budget_positions: int | None
    cache: CacheStats | None = None
    """The prompt cache, if there is one."""
    width_costs: WidthCosts | None = None
    """What verify rounds cost here, where that is known."""

    @property
    def slots_free(self) -> int:
        """Slots nobody has."""
        return self.parallel - len(self.slots)

    @property
    def queue_depth(self) -> int:
        """How many requests wait."""
        return sum(self.queue_depths.values())
