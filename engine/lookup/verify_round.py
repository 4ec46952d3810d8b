"""One verify round: a forward over newest tokens and drafts, accepted as far as they are right.

Rows share the forward, where their model lets them, and nothing else: each is decided, cut back
and ended by itself. An empty draft is a plain step.

A drafted token is accepted when it is the very token the row's own sampler draws at its place.
The proposal is a single token, so this is the optimal rejection rule for every sampler: the text
is what plain decoding writes, up to near-ties of a wider forward.

State law: afterwards KV holds prompt + written - 1 tokens (prompt + written after an end token),
as after the same number of plain steps; a failed round leaves what was there before it. This
holds for every row of the round, whatever became of its neighbours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from engine.errors import RowError
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome, VerifyOutcome

Reading = TypeVar("Reading")


class RoundEngine(Protocol[Reading]):
    """What a round asks of the engine."""

    def forward_drafts(self, drafts: Mapping[SeqId, Sequence[int]]) -> Mapping[SeqId, Reading]:
        """Append [current, *draft] to each row and draw after each token.

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

    def fail_rows(self, seqs: Iterable[SeqId], error: RowError) -> list[StepOutcome]:
        """End rows with one error, which counts once."""
        ...


def verify_round(
    engine: RoundEngine[Reading], drafts: Mapping[SeqId, Sequence[int]]
) -> list[VerifyOutcome]:
    """Write to each row one token more than its draft has right ones; fewer when it finishes.

    Args:
        engine: where the rows live.
        drafts: rows that decode, with nothing in flight; a draft may be empty.

    Returns:
        An outcome a row, in order.
    """
    held = {seq: engine.held_tokens(seq) for seq in drafts}
    try:
        readings = engine.forward_drafts(drafts)
    except RowError as error:
        for seq, tokens in held.items():
            _cut_back(engine, seq, tokens, error)
        ended = engine.fail_rows(drafts, error)
        return [
            VerifyOutcome(seq, (step,), len(drafts[seq]), accepted=0, error=error)
            for seq, step in zip(drafts, ended, strict=True)
        ]
    return [
        _decided(engine, seq, draft, readings[seq], held=held[seq]) for seq, draft in drafts.items()
    ]


def _decided(
    engine: RoundEngine[Reading],
    seq: SeqId,
    draft: Sequence[int],
    reading: Reading,
    *,
    held: int,
) -> VerifyOutcome:
    steps: list[StepOutcome] = []
    accepted = 0
    for position in range(len(draft) + 1):
        step = engine.commit_position(seq, reading, position)
        if step.error is not None:
            _cut_back(engine, seq, held, step.error)
            return _failed(engine, seq, draft, step.error, steps)
        steps.append(step)
        # A token that finishes the row is the row's own, even where the draft had it.
        if step.is_final or position == len(draft) or step.token != draft[position]:
            break
        accepted += 1
    try:
        engine.rewind(seq, len(draft) - accepted)
    except RowError as error:
        steps[-1] = _unfinished(steps[-1])
        return _failed(engine, seq, draft, error, steps)
    return VerifyOutcome(seq, tuple(steps), drafted=len(draft), accepted=accepted)


def _unfinished(step: StepOutcome) -> StepOutcome:
    """A step whose row is ended by a failure, whatever the token itself would have done."""
    token = None if step.finish is FinishCause.EOS else step.token
    return replace(step, token=token, finish=None)


def _cut_back(engine: RoundEngine[Reading], seq: SeqId, held: int, error: RowError) -> None:
    """Put a failed row's KV back as it was, which matters to nobody but must not raise."""
    try:
        engine.rewind(seq, engine.held_tokens(seq) - held)
    except RowError as second:
        error.add_note(f"and its KV could not be cut back: {second}")


def _failed(
    engine: RoundEngine[Reading],
    seq: SeqId,
    draft: Sequence[int],
    error: RowError,
    steps: Sequence[StepOutcome],
) -> VerifyOutcome:
    (ended,) = engine.fail_rows([seq], error)
    return VerifyOutcome(seq, (*steps, ended), drafted=len(draft), accepted=0, error=error)
