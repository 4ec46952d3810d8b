"""From runs to figures: medians, ratios to the plain run, first differences."""

import pytest

from engine.lookup.stats import LookupStats
from mlxcel_cli.bench.report import lookup_lines, summary_object, width_lines, width_object
from mlxcel_cli.bench.results import (
    VariantRun,
    WidthTable,
    copy_gain,
    first_difference,
    geometric_mean,
    lookup_chart,
    summarise,
)
from mlxcel_cli.bench.tasks import TASKS

TABLE = WidthTable(300, 40, 0.02, ((1, 0.022), (2, 0.03), (8, 0.05)))


def run(
    task: str, variant: str, repetition: int, rate: float, *, copies=True, text="abc"
) -> VariantRun:
    stats = None if variant == "plain" else LookupStats(rounds=9, drafted_rounds=3, proposed=8)
    return VariantRun(task, variant, repetition, copies, 9, rate, rate / 2, text, stats)


RUNS = [
    run("edit", "plain", 0, 10), run("edit", "auto", 0, 20),
    run("edit", "plain", 1, 5), run("edit", "auto", 1, 15),
    run("edit", "plain", 2, 10), run("edit", "auto", 2, 40),
    run("list", "plain", 0, 10), run("list", "auto", 0, 12),
    run("story", "plain", 0, 10, copies=False),
    run("story", "auto", 0, 9, copies=False, text="abx"),
]  # fmt: skip


def test_ratios_are_of_the_runs_of_one_repetition():
    edit = summarise(RUNS)[1]
    assert (edit.variant, edit.per_second, edit.over_plain) == ("auto", 20, 3.0)


def test_the_gain_is_the_geometric_mean_of_the_tasks_that_copy():
    summaries = summarise(RUNS)
    assert copy_gain(summaries, "auto") == pytest.approx((3.0 * 1.2) ** 0.5)
    assert copy_gain(summaries, "gated") is None


def test_a_text_that_differs_says_where():
    assert [one.differs_at for one in summarise(RUNS)] == [None, None, None, None, None, 2]


@pytest.mark.parametrize(
    ("text", "plain", "at"), [("ab", "ab", None), ("ab", "ac", 1), ("a", "ab", 1), ("", "a", 0)]
)
def test_the_first_difference_of_two_texts(text, plain, at):
    assert first_difference(text, plain) == at


def test_a_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_costs_are_in_steps():
    assert dict(TABLE.costs) == pytest.approx({1: 1.1, 2: 1.5, 8: 2.5})
    assert [bar.label for bar in TABLE.chart().bars] == ["width 1", "width 2", "width 8"]


def test_tables_have_a_line_for_each_row_and_json_has_the_same_figures():
    assert len(width_lines(TABLE)) == 3 + 3
    assert width_object(TABLE)["widths"][1] == {"width": 2, "ms": 30.0, "cost": 1.5}
    summaries = summarise(RUNS)
    lines = lookup_lines(summaries)
    assert len(lines) == 1 + 6 + 1
    assert lines[2].split() == ["edit", "auto", "20.00", "3.000", "3/9", "0/8", "0", "-"]
    assert summary_object(summaries)["copy_gain"]["auto"] == copy_gain(summaries, "auto")


def test_the_chart_leaves_plain_out():
    assert [bar.label for bar in lookup_chart(summarise(RUNS)).bars] == [
        "edit, auto",
        "list, auto",
        "story, auto",
    ]


def test_there_are_five_tasks_of_which_three_copy():
    assert [task.copies for task in TASKS] == [True, True, True, False, False]
    assert all(task.temperature > 0 for task in TASKS if not task.copies)
