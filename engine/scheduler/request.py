"""What a client asks of the scheduler: a frozen value, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.params import SequenceParams
from engine.prompt_cache.key import CacheUse
from engine.scheduler.queue import Priority

if TYPE_CHECKING:
    from engine.lookup.reference import ReferenceText
    from engine.rows import RowHooks


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One answer to write. Choices of ``n`` are requests of their own, each with its ``choice``."""

    id: str
    """Unique among the requests that wait or run; every event names it."""
    params: SequenceParams
    stops: tuple[str, ...] = ()
    """Stop strings."""
    keep_texts: tuple[str, ...] = ()
    """Special tokens that are text all the same: the marks of a model's reasoning."""
    continues_text: bool = False
    """Whether the answer continues the prompt's text; otherwise it begins one, as a turn does."""
    priority: Priority = Priority.NORMAL
    hooks: RowHooks | None = None
    """What a feature decides for the row; such a row is never preempted."""
    cache: CacheUse | None = field(default_factory=CacheUse)
    """How it uses the prompt cache; None: neither looks up nor leaves anything."""
    is_speculative: bool = True
    """False opts out of the drafts that a server makes of its own accord."""
    references: tuple[ReferenceText, ...] = ()
    """Texts that drafts may also be copied from."""
    keeps_unfinished: bool = False
    """Whether the prompt cache also takes a prompt that is cancelled before its first token."""
