"""The round's arithmetic on rows that are only counted: KV length, what is drawn, what is ended."""

from dataclasses import dataclass, field

import pytest

from engine.errors import EvalFailed, HookFailed, NonFiniteLogits, RewindFailed, RowError
from engine.finish import FinishCause
from engine.lookup.verify import Drafting
from engine.outcome import SeqId, StepOutcome, VerifyOutcome

SEQ = SeqId(3)
A, B, C, D, Z, EOS = range(6)
HELD = 10


@dataclass
class CountedRow:
    """A row whose model draws ``targets``; a target may be an error."""

    targets: list[int | RowError]
    finishes: dict[int, FinishCause] = field(default_factory=dict)
    """Position of a target to why it ends the row."""
    rewind_error: RowError | None = None
    overflows: frozenset[int] = frozenset()
    """Positions where nothing can be drawn while there is a draft."""
    held: int = HELD
    committed: list[int] = field(default_factory=list)
    failed: RowError | None = None
    plain_from: int = 0
    wiped: int = 0


@dataclass
class CountedRows(Drafting):
    """Rows of one engine."""

    rows: dict[SeqId, CountedRow]
    forward_error: RowError | None = None
    forward_appends: bool = True
    fed: list[dict[SeqId, tuple[int, ...]]] = field(default_factory=list)
    ended: list[list[SeqId]] = field(default_factory=list)
    """The rows of each error."""

    def forward_drafts(self, drafts):
        self.fed.append({seq: tuple(draft) for seq, draft in drafts.items()})
        if self.forward_appends:
            for seq, draft in drafts.items():
                self.rows[seq].held += len(draft) + 1
        if self.forward_error:
            raise self.forward_error
        readings = {}
        for seq, draft in drafts.items():
            row = self.rows[seq]
            if row.overflows and not draft:  # the step in place of the draft
                row.plain_from = len(row.committed)
            readings[seq] = row.targets
        return readings

    def is_unusable(self, reading, position):
        row = next(row for row in self.rows.values() if row.targets is reading)
        return position in row.overflows

    def wipe(self, seq):
        self.rows[seq].wiped += 1

    def commit_position(self, seq, reading, position):
        row = self.rows[seq]
        position += row.plain_from
        assert position == len(row.committed), "positions come in order, each once"
        row.committed.append(position)
        target = reading[position]
        if isinstance(target, RowError):
            return StepOutcome(seq, None, error=target)
        cause = FinishCause.EOS if target == EOS else row.finishes.get(position)
        return StepOutcome(seq, target, finish=cause)

    def rewind(self, seq, tokens):
        row = self.rows[seq]
        if row.rewind_error:
            raise row.rewind_error
        assert tokens >= 0
        row.held -= tokens

    def held_tokens(self, seq):
        return self.rows[seq].held

    def fail_rows(self, seqs, error):
        self.ended.append(list(seqs))
        for seq in seqs:
            self.rows[seq].failed = error
        return [StepOutcome(seq, None, error=error) for seq in seqs]


def alone(row: CountedRow, draft: tuple[int, ...], **kw) -> VerifyOutcome:
    """A round of that one row."""
    rows = CountedRows({SEQ: row}, **kw)
    (outcome,) = rows.verify_round({SEQ: draft})
    assert rows.fed == [{SEQ: draft}], "one forward"
    return outcome


def tokens(outcome) -> list[int | None]:
    return [step.token for step in outcome.steps]


ROUNDS = [
    pytest.param((A, B, C), [A, B, C, D], {}, [A, B, C, D], 3, HELD + 4,
                 id="all and one of its own"),
    pytest.param((A, B, C), [A, B, Z, D], {}, [A, B, Z], 2, HELD + 3, id="two right"),
    pytest.param((A, B, C), [Z, B, C, D], {}, [Z], 0, HELD + 1, id="none right"),
    pytest.param((A, B, C), [A, EOS, C, D], {}, [A, EOS], 1, HELD + 2, id="an end token"),
    pytest.param(
        (A, B, C), [A, B, C, D], {1: FinishCause.LENGTH}, [A, B], 1, HELD + 2,
        id="the budget ends on a token that the draft had",
    ),
    pytest.param(
        (A, B, C), [A, B, C, D], {2: FinishCause.STOP_SEQUENCE}, [A, B, C], 2, HELD + 3,
        id="a stop string",
    ),
    pytest.param(
        (A, B, C), [A, B, C, D], {3: FinishCause.CONTEXT_EXHAUSTED}, [A, B, C, D], 3, HELD + 4,
        id="the context is full after the round's own token",
    ),
    pytest.param((), [Z], {}, [Z], 0, HELD + 1, id="an empty draft"),
    pytest.param((), [EOS], {}, [EOS], 0, HELD + 1, id="an end token after an empty draft"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("draft", "targets", "finishes", "written", "accepted", "held_after"), ROUNDS
)
def test_a_round_writes_the_right_prefix_and_one_token(
    draft, targets, finishes, written, accepted, held_after
):
    row = CountedRow(targets, finishes)
    outcome = alone(row, draft)
    assert tokens(outcome) == written
    assert (outcome.accepted, outcome.drafted, outcome.error) == (accepted, len(draft), None)
    assert row.held == held_after
    assert [step.is_final for step in outcome.steps[:-1]] == [False] * (len(written) - 1)


def test_rows_of_a_round_share_the_forward_and_nothing_else():
    drafts, expected, rows = {}, {}, {}
    for at, case in enumerate(ROUNDS):
        seq = SeqId(len(ROUNDS) - at)
        drafts[seq], targets, finishes, *expected[seq] = case.values
        rows[seq] = CountedRow(list(targets), dict(finishes))
    counted = CountedRows(rows)
    outcomes = counted.verify_round(drafts)
    assert counted.fed == [drafts]
    assert [outcome.seq for outcome in outcomes] == list(drafts)
    for outcome in outcomes:
        assert [tokens(outcome), outcome.accepted, rows[outcome.seq].held] == expected[outcome.seq]
    assert counted.ended == []


def test_nothing_is_drawn_behind_the_first_wrong_token():
    row = CountedRow([A, Z, HookFailed("behind the end")])
    assert tokens(alone(row, (A, B))) == [A, Z]
    assert row.committed == [0, 1]


@pytest.mark.parametrize("position", range(4))
def test_from_a_position_that_overflows_the_row_steps_plainly(position):
    row = CountedRow([A, B, C, D], overflows=frozenset({position}))
    rows = CountedRows({SEQ: row})
    (outcome,) = rows.verify_round({SEQ: (A, B, C)})
    assert rows.fed == [{SEQ: (A, B, C)}, {SEQ: ()}]
    assert tokens(outcome) == [A, B, C, D][: position + 1]
    assert (outcome.drafted, outcome.accepted, outcome.error) == (3, position, None)
    assert (row.held, row.wiped, row.failed) == (HELD + position + 1, 1, None)


def test_an_overflow_behind_the_first_wrong_token_is_wiped():
    row = CountedRow([A, Z, C, D], overflows=frozenset({3}))
    assert tokens(alone(row, (A, B, C))) == [A, Z]
    assert (row.held, row.wiped) == (HELD + 2, 1)


@pytest.mark.parametrize("position", range(4))
def test_a_failure_at_any_position_cuts_the_whole_round_and_ends_the_row(position):
    error = NonFiniteLogits("nothing usable")
    targets: list[int | RowError] = [A, B, C, D]
    targets[position] = error
    row = CountedRow(targets)
    outcome = alone(row, (A, B, C))
    assert row.held == HELD
    assert (outcome.error, outcome.accepted, row.failed) == (error, 0, error)
    assert tokens(outcome) == [*[A, B, C, D][:position], None]
    assert [step.error for step in outcome.steps] == [None] * position + [error]


@pytest.mark.parametrize("appends", [True, False], ids=["appended", "not appended"])
def test_a_forward_that_fails_leaves_its_rows_as_they_were_and_ends_them_once(appends):
    error = EvalFailed("out of memory")
    seqs = [SeqId(4), SeqId(1), SeqId(2)]
    rows = CountedRows(
        {seq: CountedRow([]) for seq in seqs}, forward_error=error, forward_appends=appends
    )
    outcomes = rows.verify_round(dict(zip(seqs, [(A, B), (), (C,)], strict=True)))
    assert rows.ended == [seqs]
    assert [(one.seq, one.drafted) for one in outcomes] == [
        (seqs[0], 2),
        (seqs[1], 0),
        (seqs[2], 1),
    ]
    for outcome in outcomes:
        row = rows.rows[outcome.seq]
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
    outcome = alone(row, (A, B, C))
    assert (outcome.error, row.failed) == (error, error)
    assert tokens(outcome) == [*written, None]
    assert {step.finish for step in outcome.steps} == {None}
    assert [step.is_final for step in outcome.steps] == [False] * len(written) + [True]


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("fault", ["commit", "rewind"])
def test_a_row_that_fails_takes_nobody_with_it(victim, fault):
    seqs = [SeqId(at) for at in range(3)]
    rows = {seq: CountedRow([A, B, Z]) for seq in seqs}
    if fault == "commit":
        rows[seqs[victim]].targets[1] = HookFailed("no such state")
    else:
        rows[seqs[victim]].rewind_error = RewindFailed("stuck")
    counted = CountedRows(rows)
    outcomes = counted.verify_round(dict.fromkeys(seqs, (A, B, C)))
    assert counted.ended == [[seqs[victim]]]
    for seq, outcome in zip(seqs, outcomes, strict=True):
        if seq != seqs[victim]:
            assert (tokens(outcome), outcome.error, rows[seq].held) == ([A, B, Z], None, HELD + 3)


def test_a_second_failure_is_a_note_on_the_first_one():
    row = CountedRow([], rewind_error=RewindFailed("second"))
    error = alone(row, (A,), forward_error=EvalFailed("first")).error
    assert isinstance(error, EvalFailed)
    assert error.__notes__ == ["and its KV could not be cut back: second"]
