"""What is shown of a chat's answers: why each ended, its speed and size, a table and plots of all.

The status line, the details panel, `/stats` and line mode take their words from here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage, Numbers
from mlxcel_cli.chat.session import CUT, FAILED, STOPPED, ChatSession

TABLE_COLUMNS = 80

NATURAL_ENDS = frozenset({None, "eos", "stop_sequence"})
"""Finish causes that need no note."""

_ENDS = {
    CUT: "cut at {} tokens",
    STOPPED: "stopped after {} tokens",
    FAILED: "broken off after {} tokens",
    "context_exhausted": "cut: the context is full, a new chat has room",
    "repetition_loop": "cut: the answer repeated itself",
}

BLOCKS = "▁▂▃▄▅▆▇█"

NO_VALUE = "·"
"""Stands in a plot for a turn that has no value."""

LEAST_TOKENS = 8
"""An answer of fewer tokens says nothing about speed."""

NAME_COLUMNS = 10


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    new_tokens: int
    one: Numbers


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    cell: Callable[[_Turn], str]


def _drafted(turn: _Turn) -> str:
    one = turn.one
    return f"{one.accepted_tokens}/{one.drafted_tokens}" if one.drafted_tokens else "-"


def _per_forward(turn: _Turn) -> str:
    rate = turn.one.tokens_per_forward
    return "-" if rate is None else f"{rate:.2f}"


_COLUMNS = (
    _Column("turn", 4, lambda turn: str(turn.number)),
    _Column("prompt", 7, lambda turn: str(turn.one.prompt_tokens)),
    _Column("new", 6, lambda turn: str(turn.new_tokens)),
    _Column("read", 6, lambda turn: str(turn.one.evaluated_tokens)),
    _Column("answer", 6, lambda turn: str(turn.one.answer_tokens)),
    _Column("first s", 7, lambda turn: f"{turn.one.ttft_s:.2f}"),
    _Column("tok/s", 6, lambda turn: f"{turn.one.tokens_per_s:.1f}"),
    _Column("drafts", 9, _drafted),
    _Column("tok/forward", 11, _per_forward),
)

_LESS_WANTED = ("tok/forward", "prompt", "new", "first s", "drafts", "read")
"""Columns that go, in this order, where there is no room."""


def finish_note(answer: ChatMessage, continue_hint: str) -> str:
    """Why an answer ended, where it was not its natural end; else nothing.

    Args:
        answer: the answer.
        continue_hint: how to continue, added only where that is possible.
    """
    finish = answer.finish
    if finish in NATURAL_ENDS:
        return ""
    note = _ENDS.get(finish or "", f"ended: {finish}").format(answer.numbers.answer_tokens)
    can_continue = finish in (CUT, STOPPED, FAILED) and answer.text.strip()
    return f"{note} — {continue_hint}" if continue_hint and can_continue else note


def speed_text(answer: ChatMessage) -> str:
    """Rate, time to first token and drafts of one answer, in a line."""
    return " · ".join(speed_parts(answer))


def speed_parts(answer: ChatMessage) -> tuple[str, ...]:
    """Rate, time to first token and drafts of one answer, as far as they are known."""
    numbers = answer.numbers
    parts = []
    if numbers.tokens_per_s:
        parts.append(f"{numbers.tokens_per_s:.1f} tok/s")
    if numbers.answer_tokens:
        parts.append(f"first {numbers.ttft_s:.2f} s")
    if numbers.drafted_tokens:
        parts.append(f"drafts {numbers.accepted_tokens}/{numbers.drafted_tokens}")
    if (rate := numbers.tokens_per_forward) is not None:
        parts.append(f"{rate:.1f} tokens a forward")
    return tuple(parts)


def context_text(session: ChatSession) -> str:
    """How much of the context is used: ``context 812/8192``."""
    used = context_used(session)
    limit = None if session.model is None else session.model.context_tokens
    if limit is None:
        return f"{used} tokens" if used else ""
    return f"context {used}/{limit}"


def context_used(session: ChatSession) -> int:
    """Tokens of prompt and answer of the newest answer."""
    answers = [one for one in session.chat.messages if one.role == ASSISTANT]
    if not answers:
        return 0
    known = next((one for one in reversed(answers) if one.numbers.prompt_tokens), answers[-1])
    return known.numbers.prompt_tokens + known.numbers.answer_tokens


def stats_lines(session: ChatSession) -> Iterator[str]:
    """A table of every answer, for people."""
    lines = [*table(session.chat, TABLE_COLUMNS), *comparison(session.chat)]
    yield from lines or ["No answers yet."]
    if session.lookup_refused:
        yield f"prompt lookup {session.lookup_refused}"


def table(chat: Chat, columns: int) -> Iterator[str]:
    """A line of names, then one an answer; nothing without answers.

    Args:
        chat: whose answers.
        columns: the room of a line.
    """
    turns = _turns(chat)
    shown = [*_COLUMNS]
    if not any(turn.one.drafted_tokens for turn in turns):
        shown = [one for one in shown if one.name not in ("drafts", "tok/forward")]
    for name in _LESS_WANTED:
        if sum(one.width + 1 for one in shown) <= columns:
            break
        shown = [one for one in shown if one.name != name]
    if turns:
        yield " ".join(f"{one.name:>{one.width}}" for one in shown)
    for turn in turns:
        yield " ".join(f"{one.cell(turn):>{one.width}}" for one in shown)


def plots(chat: Chat, columns: int) -> Iterator[str]:
    """Speed, and where drafts were verified their acceptance, with a block for each turn."""
    numbers = [turn.one for turn in _turns(chat)]
    speeds = [one.tokens_per_s or None for one in numbers]
    if top := max((speed or 0.0 for speed in speeds), default=0.0):
        yield _plot("tok/s", speeds, top, f"up to {top:.1f}", columns)
    drafted = sum(one.drafted_tokens for one in numbers)
    if drafted:
        parts = [
            one.accepted_tokens / one.drafted_tokens if one.drafted_tokens else None
            for one in numbers
        ]
        accepted = sum(one.accepted_tokens for one in numbers)
        yield _plot("accepted", parts, 1.0, f"{accepted / drafted:.0%} of drafts", columns)


def comparison(chat: Chat) -> Iterator[str]:
    """A line with the speed of answers with drafts and without, where there are both."""
    numbers = [turn.one for turn in _turns(chat)]
    with_drafts = _rate([one for one in numbers if one.drafted_tokens])
    without = _rate([one for one in numbers if not one.drafted_tokens])
    if with_drafts and without:
        yield f"with drafts {with_drafts:.1f} tok/s, without {without:.1f}"


def _plot(name: str, values: Sequence[float | None], top: float, about: str, columns: int) -> str:
    """``tok/s     ▃▅█ up to 45.1``: the newest values that fit, on a scale from 0 to ``top``."""
    room = max(columns - NAME_COLUMNS - 1 - len(about), 1)
    blocks = "".join(
        NO_VALUE if value is None else BLOCKS[min(int(value / top * len(BLOCKS)), 7)]
        for value in values[-room:]
    )
    return f"{name:<{NAME_COLUMNS}}{blocks} {about}"


def _rate(numbers: Sequence[Numbers]) -> float:
    known = [one for one in numbers if one.tokens_per_s and one.answer_tokens >= LEAST_TOKENS]
    seconds = sum((one.answer_tokens - 1) / one.tokens_per_s for one in known)
    return sum(one.answer_tokens - 1 for one in known) / seconds if seconds else 0.0


def _turns(chat: Chat) -> list[_Turn]:
    numbers = [one.numbers for one in chat.messages if one.role == ASSISTANT]
    counts = zip(chat.new_tokens, numbers, strict=True)
    return [_Turn(place, new, one) for place, (new, one) in enumerate(counts, start=1)]
