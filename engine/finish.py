"""Commits a drawn token to its row, and says why an answer ends: every cause, in one order.

Every front end, batch width and verify round ends here, so there is one rule for when an answer
stops and which text is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.errors import HookFailed, NonFiniteLogits, RowError
from engine.outcome import StepOutcome, TokenLogprobs
from engine.params import LoopRule

if TYPE_CHECKING:
    from engine.rows import Row

HOOK_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a faulty mask, text or finish hook raises; it ends the row, not the step."""

NOT_FINITE = -1
"""What a step reports instead of a token when the row's logits were unusable."""

UNUSABLE = "no token can be drawn: the model gave NaN or infinity, or every token is banned"

LOOP_PATTERN_LIMIT = 64
"""Longest repeated block that is looked for, whatever the rule asks."""


class FinishCause(StrEnum):
    """Why an answer ended, in the order the causes are checked."""

    EOS = "eos"
    STOP_SEQUENCE = "stop_sequence"
    STRUCTURED_STOP = "structured_stop"
    LENGTH = "length"
    CONTEXT_EXHAUSTED = "context_exhausted"
    REPETITION_LOOP = "repetition_loop"


@dataclass(frozen=True, slots=True)
class FinishRules:
    """What may end an answer, fixed at ``open``."""

    eos_ids: frozenset[int]
    """The model's, the tokenizer's and the request's end tokens; empty under ignore_eos."""
    max_tokens: int | None
    context_tokens: int | None
    """Bound on prompt + answer."""
    loop: LoopRule


def commit(row: Row, token: int, logprobs: TokenLogprobs | None = None) -> StepOutcome:
    """Append ``token`` to the row, or end it.

    An end token is not appended. The token that trips the repetition loop is, but its text is
    not shown.
    """
    if token == NOT_FINITE:
        return fail(row, NonFiniteLogits(UNUSABLE))
    if token in row.rules.eos_ids:
        row.finish()
        return StepOutcome(row.seq, token, _closing_text(row), FinishCause.EOS, logprobs=logprobs)
    row.append(token)
    try:
        cause = _cause(row, token)
    except HOOK_ERRORS as error:
        return fail(row, HookFailed(f"{type(error).__name__}: {error}"))
    if cause is None:
        text = "" if row.text is None else row.text.take()
    elif cause is FinishCause.REPETITION_LOOP:
        text = ""
    elif cause is FinishCause.STOP_SEQUENCE:
        text = "" if row.text is None else row.text.take()
    else:
        text = _closing_text(row)
    if cause is not None:
        row.finish()
    return StepOutcome(row.seq, token, text, cause, logprobs=logprobs)


def fail(row: Row, error: RowError) -> StepOutcome:
    """End the row with ``error``; what it wrote before stays."""
    row.finish(failed=True)
    return StepOutcome(row.seq, None, error=error)


def _cause(row: Row, token: int) -> FinishCause | None:
    stopped = row.text is not None and row.text.push(token)
    return finish_after_push(
        ids=row.ids,
        prompt_tokens=row.prompt_tokens,
        rules=row.rules,
        stop_string=stopped,
        hook=None if row.hooks is None else row.hooks.finish(row.ids),
    )


def _closing_text(row: Row) -> str:
    if row.text is None:
        return ""
    row.text.flush()
    return row.text.take()


def finish_after_push(
    *,
    ids: Sequence[int],
    prompt_tokens: int,
    rules: FinishRules,
    stop_string: bool,
    hook: FinishCause | None = None,
) -> FinishCause | None:
    """The first cause that ends an answer whose newest token is no end token.

    Args:
        ids: prompt and answer, the newest token included.
        prompt_tokens: length of the prompt.
        rules: fixed at ``open``.
        stop_string: whether the newest token completed a stop string.
        hook: what a row hook says: LENGTH for a bound of its own, STRUCTURED_STOP when its
            grammar is complete.
    """
    if stop_string:
        return FinishCause.STOP_SEQUENCE
    if hook is not None:
        return hook
    written = len(ids) - prompt_tokens
    if rules.max_tokens is not None and written >= rules.max_tokens:
        return FinishCause.LENGTH
    if context_is_full(written, prompt_tokens, rules):
        return FinishCause.CONTEXT_EXHAUSTED
    if is_loop(ids, prompt_tokens, rules.loop):
        return FinishCause.REPETITION_LOOP
    return None


def context_is_full(written: int, prompt_tokens: int, rules: FinishRules) -> bool:
    """Whether prompt and answer together are as long as they may be."""
    bound = rules.context_tokens
    return bound is not None and prompt_tokens + written >= bound


def verify_room(written: int, prompt_tokens: int, rules: FinishRules) -> int | None:
    """Drafted tokens a verify round may append under the context bound; None: no bound."""
    if rules.context_tokens is None:
        return None
    return max(0, rules.context_tokens - prompt_tokens - written - 1)


def is_loop(ids: Sequence[int], prompt_tokens: int, rule: LoopRule) -> bool:
    """Whether the answer's tail is ``min_count`` copies of one block, smallest block first."""
    longest = min(rule.max_pattern, LOOP_PATTERN_LIMIT)
    for period in range(max(1, rule.min_pattern), longest + 1):
        span = period * rule.min_count
        if span > len(ids) - prompt_tokens:
            return False
        first = len(ids) - span
        if all(ids[i] == ids[i - period] for i in range(first + period, len(ids))):
            return True
    return False
