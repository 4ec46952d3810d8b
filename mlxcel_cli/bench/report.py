"""Shows what `mlxcel bench` measured: tables and bars for people, JSON lines for programs."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict

from mlxcel_cli.bench.charts import Chart, text_bars
from mlxcel_cli.bench.results import (
    PLAIN,
    VARIANTS,
    Setup,
    VariantRun,
    VariantSummary,
    WidthTable,
    copy_gain,
)
from mlxcel_cli.output import Output


def setup_object(setup: Setup) -> dict[str, object]:
    """The first line of ``--json``."""
    return {"type": "setup", **asdict(setup)}


def width_object(table: WidthTable) -> dict[str, object]:
    """The table for ``--json``."""
    return {
        "type": "widths",
        "prompt_tokens": table.prompt_tokens,
        "repeats": table.repeats,
        "step_ms": round(table.step_s * 1000, 4),
        "widths": [
            {"width": width, "ms": round(spent * 1000, 4), "cost": round(spent / table.step_s, 4)}
            for width, spent in table.seconds
        ],
        "kept_in": None if table.kept_in is None else str(table.kept_in),
    }


def run_object(run: VariantRun) -> dict[str, object]:
    """One run for ``--json``."""
    return {"type": "run", **asdict(run)}


def summary_object(summaries: Sequence[VariantSummary]) -> dict[str, object]:
    """The last line of ``--json``."""
    return {
        "type": "summary",
        "variants": [asdict(one) for one in summaries],
        "copy_gain": {
            variant: copy_gain(summaries, variant) for variant in VARIANTS if variant != PLAIN
        },
    }


def width_lines(table: WidthTable) -> list[str]:
    """The table for people."""
    lines = [
        f"One pipelined one-token step: {table.step_s * 1000:.2f} ms "
        f"({table.prompt_tokens} tokens before it, medians of {table.repeats}).",
        "",
        " width       ms     cost",
    ]
    for (width, spent), (_, cost) in zip(table.seconds, table.costs, strict=True):
        lines.append(f"{width:6d} {spent * 1000:8.2f} {cost:8.2f}")
    return lines


def lookup_lines(summaries: Sequence[VariantSummary]) -> list[str]:
    """The table for people."""
    lines = [
        f"{'task':<18}{'variant':<8}{'tok/s':>8}{'over plain':>12}{'drafted':>12}{'accepted':>12}"
        f"{'shadow':>8}{'differs at':>12}"
    ]
    for one in summaries:
        lines.append(
            f"{one.task:<18}{one.variant:<8}{one.per_second:>8.2f}{one.over_plain:>12.3f}"
            + _counts(one)
        )
    for variant in VARIANTS[1:]:
        gain = copy_gain(summaries, variant)
        if gain is not None:
            lines.append(f"geometric mean of the tasks that copy, {variant}: {gain:.3f}")
    return lines


def show_chart(output: Output, chart: Chart) -> None:
    """Bars below the table, where someone looks at a terminal."""
    if output.is_for_people:
        output.line("")
        for line in text_bars(chart, shutil.get_terminal_size().columns):
            output.line(line)


def _counts(one: VariantSummary) -> str:
    stats = one.lookup
    if stats is None:
        return f"{one.tokens:>12} tokens"
    drafted = f"{stats.drafted_rounds}/{stats.rounds}"
    accepted = f"{stats.accepted}/{stats.proposed}"
    differs = "-" if one.differs_at is None else str(one.differs_at)
    return f"{drafted:>12}{accepted:>12}{stats.shadow_confirmations:>8}{differs:>12}"
