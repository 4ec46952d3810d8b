"""The measurement on a counted row and a scripted clock."""

import pytest

from engine.errors import EvalFailed
from engine.lookup.warm_up import RUNS, every_width, few_widths, warm_up_verify_widths
from engine.outcome import SeqId

SEQ = SeqId(0)
HELD = 20


class TimedRow:
    """Counts tokens; a waited-for forward takes ``seconds(width, run)``, a pipelined step 1."""

    def __init__(self, seconds=lambda width, run: float(width), fails_at: int | None = None):
        self.seconds = seconds
        self.fails_at = fails_at
        self.held = self.most = HELD
        self.now = 0.0
        self.runs: dict[int, int] = {}
        self.pipelined = 0

    def clock(self) -> float:
        return self.now

    def forward_width(self, seq, width, *, wait):
        self.held += width
        self.most = max(self.most, self.held)
        if width == self.fails_at:
            raise EvalFailed("no memory")
        if wait and not self.pipelined:
            self.runs[width] = self.runs.get(width, 0) + 1
            self.now += self.seconds(width, self.runs[width])
        else:
            self.now += 1
            self.pipelined = 0 if wait else self.pipelined + 1

    def rewind(self, seq, tokens):
        self.held -= tokens

    def held_tokens(self, seq):
        return self.held


def test_costs_are_in_pipelined_steps():
    row = TimedRow(lambda width, run: 1.25 if width == 1 else 0.5 + width)
    costs = warm_up_verify_widths(row, SEQ, every_width(3), row.clock)
    assert costs.by_width == (1.25, 2.5, 3.5, 4.5)


def test_the_shortest_run_of_a_width_counts():
    row = TimedRow(lambda width, run: width + (9 if run == 1 else 0))
    assert warm_up_verify_widths(row, SEQ, [1, 2, 4], row.clock).by_width == (1, 2, 3, 4)
    assert row.runs == {1: RUNS, 2: RUNS, 4: RUNS}


def test_the_row_is_as_it_was():
    row = TimedRow()
    warm_up_verify_widths(row, SEQ, every_width(7), row.clock)
    assert row.held == HELD
    assert row.most == HELD + 8, "one width at a time"


@pytest.mark.parametrize("width", [1, 2, 8])
def test_a_width_that_fails_is_cut_off_before_the_error_leaves(width):
    row = TimedRow(fails_at=width)
    with pytest.raises(EvalFailed):
        warm_up_verify_widths(row, SEQ, every_width(7), row.clock)
    assert row.held == HELD


@pytest.mark.parametrize(
    ("max_draft", "every", "few"),
    [
        (1, [1, 2], [1, 2]),
        (2, [1, 2, 3], [1, 2, 3]),
        (7, list(range(1, 9)), [1, 2, 4, 8]),
        (20, [*range(1, 10), 16, 21], [1, 2, 4, 8, 16, 21]),
        (64, [*range(1, 10), 16, 32, 64, 65], [1, 2, 4, 8, 16, 32, 64, 65]),
    ],
)
def test_widths_end_with_the_widest_round(max_draft, every, few):
    assert every_width(max_draft) == every
    assert few_widths(max_draft) == few
