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
    *, generated: Sequence[int], prompt_tokens: int, rules: FinishRules, stop_string: bool
) -> FinishCause | None:
    """The first cause that stops a sequence whose newest token is no end token.

    Args:
        generated: what was written, the newest token included.
        prompt_tokens: length of the prompt.
        rules: fixed at ``open``.
        stop_string: whether the newest token completed a stop string.
    """
    if stop_string:
        return FinishCause.STOP_SEQUENCE
    if rules.max_tokens is not None and len(generated) >= rules.max_tokens:
        return FinishCause.LENGTH
    if context_is_full(len(generated), prompt_tokens, rules):
        return FinishCause.CONTEXT_EXHAUSTED
    if is_loop(generated, rules.loop):
        return FinishCause.REPETITION_LOOP
    return None


def context_is_full(generated_tokens: int, prompt_tokens: int, rules: FinishRules) -> bool:
    """Whether the next append would leave no room under the context bound."""
    bound = rules.context_tokens
    return bound is not None and prompt_tokens + generated_tokens + 1 >= bound


def verify_room(generated_tokens: int, prompt_tokens: int, rules: FinishRules) -> int | None:
    """Drafted tokens a verify round may append under the context bound; None: no bound."""
    if rules.context_tokens is None:
        return None
    return max(0, rules.context_tokens - prompt_tokens - generated_tokens - 2)


def is_loop(generated: Sequence[int], rule: LoopRule) -> bool:
    """Whether the tail is ``min_count`` copies of one short block, smallest block first."""
    longest = min(rule.max_pattern, LOOP_PATTERN_LIMIT)
    for period in range(max(1, rule.min_pattern), longest + 1):
        span = period * rule.min_count
        if span > len(generated):
            return False
        tail = generated[-span:]
        if all(tail[i] == tail[i - period] for i in range(period, span)):
            return True
    return False
