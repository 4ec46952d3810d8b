"""The finish step: what one drawn token does to its row, in the order of `engine.finish`.

Every front end, batch width and verify round ends here, so there is one rule for when an answer
stops and which text is shown.
"""

from engine.errors import HookFailed, NonFiniteLogits, RowError
from engine.finish import FinishCause, finish_after_push
from engine.outcome import StepOutcome, TokenLogprobs
from engine.rows import HOOK_ERRORS, Phase, Row

NOT_FINITE = -1
"""What a step reports instead of a token when the row's logits were unusable."""


def commit(row: Row, token: int, logprobs: TokenLogprobs | None = None) -> StepOutcome:
    """Append ``token`` to the row, or end it.

    An end token is not appended. The token that trips the repetition loop is, but its text is
    not shown.
    """
    if token == NOT_FINITE:
        return fail(row, NonFiniteLogits("the model gave no usable probability for any token"))
    if token in row.rules.eos_ids:
        row.phase = Phase.FINISHED
        return StepOutcome(row.seq, token, _closing_text(row), FinishCause.EOS, logprobs=logprobs)
    row.ids.append(token)
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
        row.phase = Phase.FINISHED
    return StepOutcome(row.seq, token, text, cause, logprobs=logprobs)


def fail(row: Row, error: RowError) -> StepOutcome:
    """End the row with ``error``; what it wrote before stays."""
    row.phase = Phase.FINISHED
    row.failed = True
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
