"""Schedulers that draft, with every call of the engine on record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.engine import Engine
from engine.lookup.drafter import PromptLookup
from engine.outcome import SeqId, VerifyOutcome
from engine.params import LookupPolicy, SequenceParams, SpeculationParams
from engine.scheduler.drafters import Drafters
from engine.scheduler.settings import LookupSettings, SchedulerSettings
from engine.scheduler.state import Limits
from tests.engine.inside import rows_of
from tests.engine.rigs import cycle_engine
from tests.engine.scheduler.scheduler_rigs import Served

PERIOD = 24
COPY = (*range(PERIOD), 0, 1, 2)
"""A prompt that holds what the cycle model continues with."""
PLAIN = (3,)
"""One that does not."""


def drafting(
    policy: str = "fixed", *, max_batch: int = 4, max_draft: int = 7, **kw: Any
) -> LookupSettings:
    """Settings of prompt lookup; nothing is measured unless asked for."""
    speculation = SpeculationParams(policy=LookupPolicy(policy), max_draft=max_draft)
    return LookupSettings(speculation, **{"max_batch": max_batch, "builds_kernels": False, **kw})


def served(
    engine: Engine, lookup: LookupSettings | None = None, *, settings: Any = None, **limits: Any
) -> Served:
    """A scheduler with room for 4 that drafts whenever it can."""
    limits = {"parallel": 4, "short_tokens": 0, **limits}
    chosen = SchedulerSettings(
        Limits(**limits), lookup=drafting() if lookup is None else lookup, **(settings or {})
    )
    return Served(engine, settings=chosen)


def alphabet(tokenizer: Any, *, together: bool = False, **kw: Any) -> Engine:
    """Writes 0, 1, … 23, 0, 1, … for ever; ``together``: drafts of several rows share forwards."""
    engine = cycle_engine(**{"vocab": 259, "period": PERIOD, "tokenizer": tokenizer, **kw})
    return engine if together else apart(engine)


def endless(tokenizer: Any, *, together: bool = False, **kw: Any) -> Engine:
    """Writes 259 different tokens before it repeats itself."""
    engine = cycle_engine(vocab=259, tokenizer=tokenizer, **kw)
    return engine if together else apart(engine)


def apart(engine: Engine) -> Engine:
    """The engine, as if its storage could not verify drafts of several rows in one forward."""
    engine.__class__ = type("Apart", (type(engine),), {"verifies_together": False})
    return engine


def lookups(served: Served) -> Drafters:
    """The drafters of a scheduler."""
    return served.scheduler._drafters


def drafter(served: Served, id_: str) -> PromptLookup | None:
    """The drafter of a request; None: it has none."""
    job = served.scheduler._rows.get(id_)
    return None if job is None else job.drafts.drafter


def ticks_until(one: Served, condition: Callable[[], bool]) -> None:
    """Tick until it is so."""
    for _ in range(200):
        if condition():
            return
        one.tick()
    raise AssertionError("it never came")


def altered(drafter: PromptLookup | None, **methods: Any) -> None:
    """Replace methods of one drafter."""
    assert drafter is not None
    # It has slots, so a subclass carries them.
    drafter.__class__ = type("Altered", (type(drafter),), {"__slots__": (), **methods})


@dataclass
class Watch:
    """Stands before an engine's steps and rounds, and notes them in order."""

    engine: Any
    log: list[str] = field(default_factory=list)
    """``submit``, ``collect``, ``verify`` and what a test puts between."""
    drafts: dict[SeqId, list[tuple[int, ...]]] = field(default_factory=dict)
    ids: dict[SeqId, tuple[int, ...]] = field(default_factory=dict)
    """Prompt and answer of each row at its last round."""
    accepted: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Of each round's forward."""

    def __post_init__(self) -> None:
        self._submit, self._collect = self.engine.submit, self.engine.collect
        self._verify = self.engine.verify_together
        self.engine.submit, self.engine.collect = self.submit, self.collect
        self.engine.verify_together = self.verify

    def submit(self, seqs: Sequence[SeqId]) -> Any:
        self.log.append("submit")
        return self._submit(seqs)

    def collect(self, ticket: Any) -> Any:
        self.log.append("collect")
        return self._collect(ticket)

    def verify(self, drafts: Mapping[SeqId, Sequence[int]]) -> list[VerifyOutcome]:
        assert not any(row.in_flight for row in rows_of(self.engine).values()), "I2"
        self.log.append("verify")
        self.rows.append(len(drafts))
        for seq, draft in drafts.items():
            self.ids[seq] = self.engine.ids(seq)
            self.drafts.setdefault(seq, []).append(tuple(draft))
        outcomes = self._verify(drafts)
        self.accepted += [one.accepted for one in outcomes if one.drafted]
        return outcomes

    def of_tick(self, served: Served) -> list[str]:
        """What one tick called."""
        self.log.clear()
        served.tick()
        return list(self.log)


def params(prompt: Sequence[int] = COPY, tokens: int = 60, **kw: Any) -> SequenceParams:
    """A greedy request."""
    return SequenceParams(tuple(prompt), max_tokens=tokens, **kw)
