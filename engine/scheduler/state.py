"""What a plan is made from: the rows and the queue as frozen values."""

from dataclasses import dataclass, field

from engine.outcome import SeqId
from engine.scheduler.budget import KvBudget, KvShape
from engine.scheduler.preemption import PreemptionPolicy
from engine.scheduler.queue import Priority


@dataclass(frozen=True, slots=True)
class WaitingState:
    """A request of the queue."""

    id: str
    priority: Priority
    prefill_tokens: int
    """Tokens to forward before it decodes: the prompt, and what it wrote before a preemption."""
    room_tokens: int
    """Tokens its row is to have room for (`RowState.room_tokens`)."""


@dataclass(frozen=True, slots=True)
class RowState:
    """A request that has a slot."""

    id: str
    seq: SeqId
    priority: Priority
    tokens: int
    """Prompt and answer so far."""
    room_tokens: int
    """Tokens the budget counts for it: all it may ever hold, or, when rows can be preempted, what
    it holds and a growth step."""
    prefill_left: int = 0
    """Tokens still to forward before it decodes; 0: it decodes."""
    is_long: bool = False
    """Whether its prefill is long between decode steps instead of going ahead of them."""
    can_step: bool = True
    """Whether one more step may be submitted for it."""
    can_be_preempted: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings a plan keeps to."""

    parallel: int = 4
    """Most rows at a time."""
    grant_interval: int = 16
    """Decode steps for each chunk of a long prefill; 0: none while any row decodes."""
    short_chunks: int = 4
    """Prompts of at most so many chunks go ahead of decode steps; longer ones are long."""
    short_tokens: int = 1024
    """Prompts of at most so many tokens are never long: on a slow or busy machine chunks are
    small, and a burst of common prompts would be read one after the other, an interval a chunk."""
    first_tokens_alone: bool = False
    """Whether a prompt's last token is forwarded alone, in a tick of its own, as suits a front end
    of one request: the progress before it is emitted first, and drafts may begin behind it."""
    preemption: PreemptionPolicy | None = None
    """Whom to preempt; None: nobody."""


@dataclass(frozen=True, slots=True)
class TickState:
    """Everything `plan_tick` looks at."""

    limits: Limits
    rows: tuple[RowState, ...]
    """In the order of their admission."""
    waiting: tuple[WaitingState, ...] = ()
    """In the order in which they are to be admitted."""
    chunk_tokens: int = 2048
    """Most tokens of one prefill chunk; 0: a prompt is one chunk."""
    interleaved_tokens: int | None = None
    """The same for a long prefill's chunk while rows decode, `chunk_tokens` at most; None: as
    that."""
    interleaved_share: float = 1.0
    """What such a chunk takes of the time of a whole one: the next one comes as much sooner."""
    steps_are_wide: bool = False
    """Whether a step of many rows takes much longer than one of a single row, as on a CPU."""
    steps_since_chunk: int = 0
    """Ticks with decode rows since a long prefill had its last chunk."""
    budget: KvBudget | None = None
    shape: KvShape = field(default_factory=KvShape)

    @property
    def short_tokens(self) -> int | None:
        """The longest prefill that is not long; None: none ever is."""
        if not self.chunk_tokens:
            return None
        return max(self.limits.short_tokens, self.chunk_tokens * self.limits.short_chunks)
