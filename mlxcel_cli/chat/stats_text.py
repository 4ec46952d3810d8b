"""What is said of an answer's speed and size: the status line, the note under it, the details."""

from collections.abc import Iterator

from mlxcel_cli.chat.messages import ASSISTANT, ChatMessage
from mlxcel_cli.chat.session import CUT, FAILED, STOPPED, ChatSession
from mlxcel_cli.chat.turn_table import comparison, table

TABLE_COLUMNS = 80

NATURAL_ENDS = frozenset({None, "eos", "stop_sequence"})
"""Finish causes that a reader need not be told."""

_ENDS = {
    CUT: "cut at {} tokens",
    STOPPED: "stopped after {} tokens",
    FAILED: "broken off after {} tokens",
    "context_exhausted": "cut: the context is full, a new chat has room",
    "repetition_loop": "cut: the answer repeated itself",
}


def finish_note(answer: ChatMessage, continue_hint: str) -> str:
    """Why an answer ended, where it was not its natural end; else nothing.

    Args:
        answer: the answer.
        continue_hint: how to go on, said only where one can.
    """
    finish = answer.finish
    if finish in NATURAL_ENDS:
        return ""
    told = _ENDS.get(finish or "", f"ended: {finish}").format(answer.numbers.answer_tokens)
    can_go_on = finish in (CUT, STOPPED, FAILED) and answer.text.strip()
    return f"{told} — {continue_hint}" if continue_hint and can_go_on else told


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
