"""The round's arithmetic on a row that is only counted: KV length, what is drawn, what is ended."""

from dataclasses import dataclass, field

import pytest

from engine.errors import EvalFailed, HookFailed, NonFiniteLogits, RewindFailed, RowError
from engine.finish import FinishCause
from engine.lookup.verify_round import verify_round
from engine.outcome import SeqId, StepOutcome

SEQ = SeqId(3)
A, B, C, D, Z, EOS = range(6)
HELD = 10


@dataclass
class CountedRow:
    """A row whose model draws ``targets``; a target may be an error."""

    targets: list[int | RowError]
    finishes: dict[int, FinishCause] = field(default_factory=dict)
    """Position of a target to why it ends the row."""
    forward_error: RowError | None = None
    forward_appends: bool = True
    rewind_error: RowError | None = None
    held: int = HELD
    fed: list[tuple[int, ...]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    failed: RowError | None = None

    def forward_draft(self, seq, draft):
        self.fed.append(tuple(draft))
        if self.forward_appends:
            self.held += len(draft) + 1
        if self.forward_error:
            raise self.forward_error
        return self.targets

    def commit_position(self, seq, reading, position):
        assert position == len(self.committed), "positions come in order, each once"
        self.committed.append(position)
        target = reading[position]
        if isinstance(target, RowError):
            return StepOutcome(seq, None, error=target)
        cause = FinishCause.EOS if target == EOS else self.finishes.get(position)
        return StepOutcome(seq, target, finish=cause)

    def rewind(self, seq, tokens):
        if self.rewind_error:
            raise self.rewind_error
        assert tokens >= 0
        self.held -= tokens

    def held_tokens(self, seq):
        return self.held

    def fail_row(self, seq, error):
        self.failed = error
        return StepOutcome(seq, None, error=error)


def tokens(outcome) -> list[int | None]:
    return [step.token for step in outcome.steps]


@pytest.mark.parametrize(
    ("targets", "finishes", "written", "accepted", "held_after"),
    [
        pytest.param([A, B, C, D], {}, [A, B, C, D], 3, HELD + 4, id="all and one of its own"),
        pytest.param([A, B, Z, D], {}, [A, B, Z], 2, HELD + 3, id="two right"),
        pytest.param([Z, B, C, D], {}, [Z], 0, HELD + 1, id="none right"),
        pytest.param([A, EOS, C, D], {}, [A, EOS], 1, HELD + 2, id="an end token"),
        pytest.param(
            [A, B, C, D], {1: FinishCause.LENGTH}, [A, B], 1, HELD + 2,
            id="the budget ends on a token that the draft had",
        ),
        pytest.param(
            [A, B, C, D], {2: FinishCause.STOP_SEQUENCE}, [A, B, C], 2, HELD + 3, id="a stop string"
        ),
        pytest.param(
            [A, B, C, D], {3: FinishCause.CONTEXT_EXHAUSTED}, [A, B, C, D], 3, HELD + 4,
            id="the context is full after the round's own token",
        ),
    ],
)  # fmt: skip
def test_a_round_writes_the_right_prefix_and_one_token(
    targets, finishes, written, accepted, held_after
):
    row = CountedRow(targets, finishes)
    outcome = verify_round(row, SEQ, (A, B, C))
    assert tokens(outcome) == written
    assert (outcome.accepted, outcome.drafted, outcome.error) == (accepted, 3, None)
    assert row.held == held_after
    assert row.fed == [(A, B, C)], "one forward"
    assert [step.is_final for step in outcome.steps[:-1]] == [False] * (len(written) - 1)


def test_nothing_is_drawn_behind_the_first_wrong_token():
    row = CountedRow([A, Z, HookFailed("behind the end")])
    assert tokens(verify_round(row, SEQ, (A, B))) == [A, Z]
    assert row.committed == [0, 1]


@pytest.mark.parametrize("position", range(4))
def test_a_failure_at_any_position_cuts_the_whole_round_and_ends_the_row(position):
    error = NonFiniteLogits("nothing usable")
    targets: list[int | RowError] = [A, B, C, D]
    targets[position] = error
    row = CountedRow(targets)
    outcome = verify_round(row, SEQ, (A, B, C))
    assert row.held == HELD
    assert (outcome.error, outcome.accepted, row.failed) == (error, 0, error)
    assert tokens(outcome) == [*[A, B, C, D][:position], None]
    assert [step.error for step in outcome.steps] == [None] * position + [error]


@pytest.mark.parametrize("appends", [True, False], ids=["appended", "not appended"])
def test_a_forward_that_fails_leaves_the_row_as_it_was(appends):
    error = EvalFailed("out of memory")
    row = CountedRow([], forward_error=error, forward_appends=appends)
    outcome = verify_round(row, SEQ, (A, B))
    assert (row.held, row.failed, outcome.error) == (HELD, error, error)
    assert tokens(outcome) == [None]


@pytest.mark.parametrize(
    ("targets", "finishes", "written"),
    [
        pytest.param([Z], {}, [Z], id="while it decodes"),
        pytest.param([A, B], {1: FinishCause.LENGTH}, [A, B], id="on its last token"),
        pytest.param([A, EOS], {}, [A, None], id="on an end token"),
    ],
)
def test_a_rewind_that_fails_overrides_how_the_row_would_have_ended(targets, finishes, written):
    error = RewindFailed("stuck")
    row = CountedRow(targets, finishes, rewind_error=error)
    outcome = verify_round(row, SEQ, (A, B, C))
    assert (outcome.error, row.failed) == (error, error)
    assert tokens(outcome) == [*written, None]
    assert {step.finish for step in outcome.steps} == {None}
    assert [step.is_final for step in outcome.steps] == [False] * len(written) + [True]


def test_a_second_failure_is_a_note_on_the_first_one():
    row = CountedRow([], forward_error=EvalFailed("first"), rewind_error=RewindFailed("second"))
    error = verify_round(row, SEQ, (A,)).error
    assert isinstance(error, EvalFailed)
    assert error.__notes__ == ["and its KV could not be cut back: second"]
