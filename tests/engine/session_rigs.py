"""What a session said: its events, and the answer they come to."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.events import Delta, Done, PrefillProgress, Started
from engine.finish import FinishCause
from engine.lookup.eligibility import Refusal
from engine.lookup.stats import LookupStats
from engine.outcome import Timings, Usage
from engine.session import SessionEvent


@dataclass
class Said:
    """A whole answer."""

    text: str
    tokens: list[int]
    finish: FinishCause
    seed: int
    usage: Usage
    timings: Timings
    stop_match: str | None
    lookup: LookupStats | None
    lookup_dropped: str | None
    lookup_refused: Refusal | None


def said(events: Iterable[SessionEvent]) -> Said:
    """The answer of events that begin with Started and end with Done, which come once each."""
    started, *between, done = events
    assert isinstance(started, Started)
    assert isinstance(done, Done)
    assert not any(isinstance(event, Started | Done) for event in between)
    tokens = [token for event in between if isinstance(event, Delta) for token in event.tokens]
    return Said(
        text_of(between),
        tokens,
        done.finish,
        done.seed,
        done.usage,
        done.timings,
        done.stop_match,
        done.lookup,
        done.lookup_dropped,
        started.lookup_refused,
    )


def text_of(events: Iterable[SessionEvent]) -> str:
    """The deltas joined."""
    return "".join(event.text for event in events if isinstance(event, Delta))


def deltas_of(events: Iterable[SessionEvent]) -> list[tuple[str, int]]:
    """The text of each delta that has any, and the tokens written up to it."""
    return [(e.text, e.completion_tokens) for e in events if isinstance(e, Delta) and e.text]


def progress_of(events: Iterable[SessionEvent]) -> list[int]:
    """Prompt tokens done at each progress event."""
    return [event.done_tokens for event in events if isinstance(event, PrefillProgress)]
