"""Runs one tiny family alone and in a ragged, changing batch, and compares logits with mlx-lm's."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from engine.engine import Engine
from engine.models.reference import reference_logits
from engine.outcome import SeqId
from engine.params import SequenceParams
from tests.engine.inside import row_of, storage_of
from tests.engine.proofs.tiny_geometry import VOCAB
from tests.engine.rigs import Watched, assert_length_law, loaded, prefill

CHUNK = 8
STEPS = 12
NEAR_TIE = 1e-3
"""Top-two gap below which another kernel width may choose the other token."""

PROMPTS = tuple(
    tuple(int(t) for t in np.random.default_rng(n).integers(0, VOCAB, n)) for n in (19, 5, 11)
)


@dataclass
class Report:
    """What a family's run came to."""

    kind: str
    batches: bool
    alone: float = 0.0
    """Largest difference of a logit at B = 1; 0 is bitwise equal."""
    together: float = 0.0
    """The same in a ragged batch of 2 and 3."""
    verified: float = 0.0
    """The same in a verify round, whose forward is wider than mlx-lm's steps, and after it."""
    verifies: bool = False
    """Whether a round can be cut back: else the row is never drafted for."""
    verifies_together: bool = False
    """Whether rows of several lengths and drafts share a round's forward."""
    ties: list[str] = field(default_factory=list)
    """Rows left at a near-tie, with the gap."""


class Row:
    """One row, its engine and what mlx-lm gave for the same prompt."""

    def __init__(self, engine: Engine, watched: Watched, prompt: tuple[int, ...], judge: Any):
        self.tokens, self.logits = judge
        self.engine, self.watched, self.report = engine, watched, None
        self.seq: SeqId = engine.open(SequenceParams(prompt_ids=prompt, max_tokens=STEPS + 1))
        self.at = 0
        self.worst = 0.0
        self.tie: str | None = None
        outcome = prefill(engine, self.seq, chunk=CHUNK)
        assert outcome.error is None, outcome.error
        self.compare(watched.logits[-1][0, -1], outcome.token)

    @property
    def slot(self) -> int:
        return row_of(self.engine, self.seq).slot

    def compare(self, logits: mx.array, token: int | None) -> None:
        """The next step's logits and token against mlx-lm's; a near-tie ends the comparison."""
        if self.tie is None:
            expected = self.logits[self.at]
            self.worst = max(self.worst, difference(logits, expected))
            if token != self.tokens[self.at]:
                best = mx.sort(expected)[-2:]
                gap = float((best[1] - best[0]).item())
                assert gap < NEAR_TIE, f"step {self.at}: {token} for {self.tokens[self.at]}, {gap}"
                self.tie = f"step {self.at}: gap {gap:.1e}"
        self.at += 1


def difference(ours: mx.array, theirs: mx.array) -> float:
    """Largest absolute difference; masked logits (-inf) must be the same ones."""
    a, b = np.array(ours, np.float64), np.array(theirs, np.float64)
    finite = np.isfinite(b)
    assert (np.isfinite(a) == finite).all(), "other logits are finite than mlx-lm's"
    return float(np.abs(a[finite] - b[finite]).max())


def step(rows: list[Row]) -> None:
    """One step of all rows, compared."""
    engine, watched = rows[0].engine, rows[0].watched
    outcomes = {outcome.seq: outcome for outcome in engine.step([row.seq for row in rows])}
    assert_length_law(engine, outcomes)
    for i, row in enumerate(rows):
        outcome = outcomes[row.seq]
        assert outcome.error is None, outcome.error
        if storage_of(engine).batches:
            row.compare(watched.logits[-1][row.slot, -1], outcome.token)
        else:
            row.compare(watched.logits[i - len(rows)][0, -1], outcome.token)


def verify(row: Row) -> None:
    """One round whose first draft is right and whose second is wrong; then the row goes on."""
    right = row.tokens[row.at]
    wrong = (row.tokens[row.at + 1] + 1) % VOCAB
    outcome = row.engine.verify(row.seq, [right, wrong])
    assert outcome.error is None, outcome.error
    logits = row.watched.logits[-1][0]
    for i, done in enumerate(outcome.steps):
        row.compare(logits[i], done.token)
    assert row.tie is not None or (outcome.accepted, len(outcome.steps)) == (1, 2)
    assert_length_law(row.engine, [row.seq])


def verify_together(first: Row, second: Row, third: Row) -> None:
    """One round of ragged rows: one draft is right and then wrong, one empty, one right."""
    right = first.tokens[first.at]
    wrong = (first.tokens[first.at + 1] + 1) % VOCAB
    drafts = {first: [right, wrong], second: [], third: [third.tokens[third.at]]}
    outcomes = first.engine.verify_together({row.seq: draft for row, draft in drafts.items()})
    logits = first.watched.logits[-1]
    for row, outcome in zip(drafts, outcomes, strict=True):
        assert outcome.error is None, outcome.error
        for i, done in enumerate(outcome.steps):
            row.compare(logits[row.slot, i], done.token)
        if row.tie is None:
            assert len(outcome.steps) == {first: 2, second: 1, third: 2}[row]
    assert_length_law(first.engine, [row.seq for row in drafts])


def sweep(
    model: Any, family: str, *, context: int, judging: Callable[[], Any] = nullcontext
) -> Report:
    """Prefill and steps at B = 1, then three ragged rows of which one joins and one leaves.

    Args:
        model: of the family.
        family: its module.
        context: most tokens of a row.
        judging: what mlx-lm's path runs within.
    """
    engine = Engine(loaded(model, family, vocab=1 << 20, context=context))
    watched = Watched(engine)
    with judging():
        judges = [reference_logits(model, prompt, STEPS, chunk_tokens=CHUNK) for prompt in PROMPTS]
        mx.eval([logits for _, logits in judges])
    report = Report(engine.choice.kind, storage_of(engine).batches)

    alone = Row(engine, watched, PROMPTS[0], judges[0])
    for _ in range(8):
        step([alone])
    if engine.draft_room(alone.seq, 2) == 2:
        report.alone, alone.worst = alone.worst, 0.0
        verify(alone)
        step([alone])
        report.verified, alone.worst = alone.worst, report.alone
        report.verifies = True
    engine.close(alone.seq)
    report.alone = alone.worst

    first, second = (Row(engine, watched, PROMPTS[i], judges[i]) for i in (0, 1))
    for _ in range(2):
        step([first, second])
    third = Row(engine, watched, PROMPTS[2], judges[2])
    for _ in range(3):
        step([first, second, third])
    if engine.verifies_together:
        verify_together(first, second, third)
        report.verifies_together = True
    step([first, second, third])
    engine.close(second.seq)
    for _ in range(3):
        step([first, third])
    report.together = max(row.worst for row in (first, second, third))
    report.ties = [row.tie for row in (alone, first, second, third) if row.tie]
    engine.close(first.seq)
    engine.close(third.seq)
    return report
