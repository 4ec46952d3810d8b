"""One verify round: a forward over the current token and a draft, accepted as far as it is right.

A drafted token is accepted when it is the very token the row's own sampler draws at its place.
The proposal is a single token, so this is the optimal rejection rule for every sampler: the text
is what plain decoding writes, up to near-ties of a wider forward.

State law: afterwards KV holds prompt + written - 1 tokens (prompt + written after an end token),
as after the same number of plain steps; a failed round leaves what was there before it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from engine.errors import RowError
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome, VerifyOutcome

Reading = TypeVar("Reading")


class RoundEngine(Protocol[Reading]):
    """What a round asks of the engine."""

    def forward_draft(self, seq: SeqId, draft: Sequence[int]) -> Reading:
        """Append [current, *draft] to a row and draw after each of them.

        Raises:
            RowError: nothing was decided; what was appended may still be there.
        """
        ...

    def commit_position(self, seq: SeqId, reading: Reading, position: int) -> StepOutcome:
        """Finish the token drawn at ``position``, as a plain step would."""
        ...

    def rewind(self, seq: SeqId, tokens: int) -> None:
        """Cut a row back.

        Raises:
            RewindFailed: the row is unchanged.
        """
        ...

    def held_tokens(self, seq: SeqId) -> int:
        """Tokens appended to a row's KV."""
        ...

    def fail_row(self, seq: SeqId, error: RowError) -> StepOutcome:
        """End a row with an error."""
        ...


def verify_round(engine: RoundEngine[Reading], seq: SeqId, draft: Sequence[int]) -> VerifyOutcome:
    """Write one token more than the draft has right ones; fewer when the row finishes.

    Args:
        engine: where the row lives.
        seq: a row that decodes, with nothing in flight.
        draft: 1 token or more.
    """
    held = engine.held_tokens(seq)
    try:
        reading = engine.forward_draft(seq, draft)
    except RowError as error:
        return _failed(engine, seq, draft, error, held=held)
    steps: list[StepOutcome] = []
    accepted = 0
    for position in range(len(draft) + 1):
        step = engine.commit_position(seq, reading, position)
        if step.error is not None:
            return _failed(engine, seq, draft, step.error, held=held, steps=steps)
        steps.append(step)
        # A token that finishes the row is the row's own, even where the draft had it.
        if step.is_final or position == len(draft) or step.token != draft[position]:
            break
        accepted += 1
    try:
        engine.rewind(seq, len(draft) - accepted)
    except RowError as error:
        steps[-1] = _unfinished(steps[-1])
        return _failed(engine, seq, draft, error, held=None, steps=steps)
    return VerifyOutcome(seq, tuple(steps), drafted=len(draft), accepted=accepted)


def _unfinished(step: StepOutcome) -> StepOutcome:
    """A step whose row is ended by a failure, whatever the token itself would have done."""
    token = None if step.finish is FinishCause.EOS else step.token
    return replace(step, token=token, finish=None)


def _failed(
    engine: RoundEngine[Reading],
    seq: SeqId,
    draft: Sequence[int],
    error: RowError,
    *,
    held: int | None,
    steps: Sequence[StepOutcome] = (),
) -> VerifyOutcome:
    """End the row; put its KV back as it was, which matters to nobody but must not raise."""
    if held is not None:
        try:
            engine.rewind(seq, engine.held_tokens(seq) - held)
        except RowError as second:
            error.add_note(f"and its KV could not be cut back: {second}")
    ended = engine.fail_row(seq, error)
    return VerifyOutcome(seq, (*steps, ended), drafted=len(draft), accepted=0, error=error)
