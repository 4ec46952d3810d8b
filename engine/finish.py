"""Why an answer ends: every cause, and the one order in which they are asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.params import LoopRule

LOOP_PATTERN_LIMIT = 64
"""Longest repeated block that is looked for, whatever the rule asks."""


class FinishCause(StrEnum):
    """Why a sequence stopped, in the order the causes are asked."""

    EOS = "eos"
    STOP_SEQUENCE = "stop_sequence"
    STRUCTURED_STOP = "structured_stop"
    LENGTH = "length"
    CONTEXT_EXHAUSTED = "context_exhausted"
    REPETITION_LOOP = "repetition_loop"


@dataclass(frozen=True, slots=True)
class FinishRules:
    """What may stop a sequence, fixed at ``open``."""

    eos_ids: frozenset[int]
    """The model's, the tokenizer's and the request's end tokens; empty under ignore_eos."""
    max_tokens: int | None
    context_tokens: int | None
    """Bound on prompt + answer."""
    loop: LoopRule


def finish_after_push(
    *,
    ids: Sequence[int],
    prompt_tokens: int,
    rules: FinishRules,
    stop_string: bool,
    hook: FinishCause | None = None,
) -> FinishCause | None:
    """The first cause that stops a sequence whose newest token is no end token.

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
    """Whether the next append would leave no room under the context bound."""
    bound = rules.context_tokens
    return bound is not None and prompt_tokens + written + 1 >= bound


def verify_room(written: int, prompt_tokens: int, rules: FinishRules) -> int | None:
    """Drafted tokens a verify round may append under the context bound; None: no bound."""
    if rules.context_tokens is None:
        return None
    return max(0, rules.context_tokens - prompt_tokens - written - 2)


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
